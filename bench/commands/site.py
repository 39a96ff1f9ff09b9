"""`bench site`: the course as pages."""

from bench.commands.base import is_on
from bench.course import site


def run(args) -> int:
    print(f"site: {site.build(is_on('QUICK', args.quick))}")
    return 0
