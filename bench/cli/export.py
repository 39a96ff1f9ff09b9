"""`bench export`: the problem sets for other graders."""

from bench.cli.base import needed
from bench.course.exercises import release


def run(args) -> int:
    return release.export(needed("TO", args.to), args.name, args.sets, args.out, args.key)
