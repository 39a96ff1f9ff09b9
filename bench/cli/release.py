"""`bench release`: the students' copies of the problem sets."""

from bench.course.exercises import release


def run(args) -> int:
    return release.run(args.name, args.sets, args.out)
