"""What the chapters and the exercises are written with: ``from bench import course``.

run_on_ranks   a function of the notebook on N fresh processes, output marked by rank, results back
bench          one command of the project, as `make` would run it, and its records
shell          any other command, with live output; it fails the cell when it fails
source         the project's own code, shown from its file
reference      committed records, labelled with their machine
size           a number that is smaller in a quick run (COURSE_QUICK=1)
diagrams       the drawings
"""

from bench.course import diagrams
from bench.course.ranks import run_on_ranks
from bench.course.records import machine, no_gpu_record, reference
from bench.course.shell import bench, shell
from bench.course.show import show_figures
from bench.course.sizes import QUICK, size
from bench.course.source import source

__all__ = [
    "QUICK", "bench", "diagrams", "machine", "no_gpu_record", "reference", "run_on_ranks", "shell", "size", "source",
]  # fmt: skip

show_figures()
