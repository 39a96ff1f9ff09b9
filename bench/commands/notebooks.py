"""`bench notebooks`: the chapters, executed with real processes."""

from bench.commands.base import is_on
from bench.course import chapters


def run(args) -> int:
    return chapters.run(args.name, is_on("QUICK", args.quick), is_on("PAIR", args.pair), is_on("OUTPUTS", args.outputs))
