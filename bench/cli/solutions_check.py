"""`bench solutions-check`: every problem set's solution scores full, its blank zero."""

from bench.course.exercises import grade


def run(args) -> int:
    return grade.check_solutions(args.name, args.sets, float(args.timeout), args.key)
