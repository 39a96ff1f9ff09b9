from bench.cli.base import study_command
from bench.studies.registry import STUDIES

COMMAND = study_command(STUDIES["compare"], parts=(study_command(STUDIES["weak"]), study_command(STUDIES["accuracy"])))
