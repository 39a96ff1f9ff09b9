from bench.cli.base import RECORDS, Command, action
from bench.config.flags import SWITCH

COMMAND = Command(
    "report", "results", "records as a table and one HTML page; or as pictures, CSV, Parquet or Markdown",
    "RECORDS=folder [FORMAT=plots BY=machine]", run=action("report"), positional={"records": RECORDS}, flags={
        "--format": {"help": "html, text, plots, csv, parquet, md, or trace (of a profiled run, for Perfetto) [html: a "
                     "table, and the page]"},
        "--by": {"help": "machine: pool the records of several machines; student: rank a class's comparisons"},
        "--memory": SWITCH | {"help": "csv, parquet, md: peak memory by device and source"},
        "--out": {"metavar": "PATH", "help": "file to write [RECORDS/report.html or trace.json; csv, md: standard "
                  "output]"},
    }, gone={"--html": "--out=FILE", "--to": "--out=FILE", "--folder": "--records=FOLDER"},
)  # fmt: skip
