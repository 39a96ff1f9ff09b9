"""`bench notebooks`: the chapters, executed with real processes."""

from bench.course import chapters


def run(args) -> int:
    return chapters.run(args.name, bool(args.quick), bool(args.pair), bool(args.outputs))
