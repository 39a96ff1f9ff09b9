"""`bench export`: the problem sets for other graders."""

from bench.commands.base import needed, whole
from bench.course.exercises import exports


def run(args) -> int:
    key = whole("KEY", args.key, at_least=0)
    return exports.run(needed("TO", args.to), args.name, args.sets, args.out, key)
