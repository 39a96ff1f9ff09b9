"""`bench grade`: points and feedback for what students have handed in."""

from bench.cli.base import needed
from bench.course.exercises import grade


def run(args) -> int:
    return grade.run(needed("SUBMITTED", args.submitted), args.name, args.sets, args.out, float(args.timeout), args.key)
