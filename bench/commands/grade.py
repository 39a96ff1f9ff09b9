"""`bench grade`: points and feedback for what students have handed in."""

from bench.commands.base import needed, whole
from bench.course.exercises import grade


def run(args) -> int:
    limit = float(whole("TIMEOUT", args.timeout, at_least=1))
    key = whole("KEY", args.key, at_least=0)
    return grade.run(needed("SUBMITTED", args.submitted), args.name, args.sets, args.out, limit, key)
