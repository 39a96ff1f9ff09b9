"""`bench solutions-check`: every problem set's solution scores full, its blank zero."""

from bench.commands.base import whole
from bench.course.exercises import solutions


def run(args) -> int:
    limit = float(whole("TIMEOUT", args.timeout, at_least=1))
    return solutions.run(args.name, args.sets, limit, whole("KEY", args.key, at_least=0))
