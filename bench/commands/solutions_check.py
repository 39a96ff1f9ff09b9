"""`bench solutions-check`: every problem set's solution scores full, its blank zero."""

from bench.course.exercises import solutions


def run(args) -> int:
    return solutions.run(args.name, args.sets, float(args.timeout), args.key)
