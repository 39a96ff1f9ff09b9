"""What the chapters and the exercises are written with: ``from bench import course``.

run_on_ranks   a function of the notebook on N fresh processes, output marked by rank, results back
bench          one command of the project, as `make` would run it, and its records
shell          any other command, with live output; it fails the cell when it fails
source         the project's own code, shown from its file
reference      a committed suite of records, labelled with its machine; references: all of a study
compared       a suite compared, as its study does it; pictures: its pictures by name
size           a number that is smaller in a quick run (COURSE_QUICK=1)
diagrams       the drawings
"""

from bench.course import diagrams
from bench.course.ranks import run_on_ranks
from bench.course.records import compared, machine, no_gpu_record, pictures, reference, references
from bench.course.shell import bench, shell
from bench.course.show import show_figures
from bench.course.sizes import QUICK, size
from bench.course.source import source

__all__ = [
    "QUICK", "bench", "compared", "diagrams", "machine", "no_gpu_record", "pictures", "reference", "references",
    "run_on_ranks", "shell", "size", "source",
]  # fmt: skip

show_figures()
