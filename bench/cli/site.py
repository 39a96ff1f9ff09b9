"""`bench site`: the course as pages."""

from bench.course import site


def run(args) -> int:
    print(f"site: {site.build(bool(args.quick))}")
    return 0
