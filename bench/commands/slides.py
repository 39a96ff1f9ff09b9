"""`bench slides`: a chapter as slides."""

from bench.course import slides


def run(args) -> int:
    """Make them; a file per line."""
    for path in slides.build(args.name):
        print(path, flush=True)
    return 0
