"""`bench solutions-check`: every problem set's solution scores full, its blank zero."""

from bench.commands.base import whole
from bench.course.exercises import solutions


def run(args) -> int:
    """Check it."""
    return solutions.run(args.name, args.sets, float(whole("TIMEOUT", args.timeout, at_least=1)))
