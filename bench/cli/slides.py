"""`bench slides`: a chapter as slides."""

from bench.course import slides


def run(args) -> int:
    for path in slides.build(args.name):
        print(path, flush=True)
    return 0
