from bench.cli.base import of_study
from bench.studies.registry import STUDIES

COMMAND = of_study(STUDIES["knobs"])
