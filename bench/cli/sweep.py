from bench.cli.base import study_command
from bench.studies.registry import STUDIES

COMMAND = study_command(STUDIES["sweep"])
