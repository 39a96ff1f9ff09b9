"""`bench report --by machine`: records of many machines, checked, in tables on standard output and in a new folder."""

import time
from pathlib import Path

from bench.analysis import drawing, tables
from bench.cli.base import DEFAULT_FOLDER, warn
from bench.files import new_folder
from bench.record.write import writable
from bench.report import pool_figure, pooling
from bench.report.export import write_table


def run(args) -> int:
    """Print the tables, and make a new folder below OUT with a CSV and a picture; its path is the last line."""
    records, said = pooling.pool(Path(args.records or DEFAULT_FOLDER))
    panels = pooling.panels_of(records)
    names = pooling.machines_of(panels)
    console = tables.terminal()
    for machine, name in names.items():
        console.print(f"{name}: {machine.line()}")
    for panel in panels:
        grid = pooling.grid(panel, names)
        tables.print_captioned(console, grid)
    for sentence in said:
        warn(sentence)
    out = Path(args.out or "results/pool")
    with writable(out):
        made = new_folder(out / f"pool-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    write_table(records, made / "pool.csv")
    drawing.save(pool_figure.draw(panels), made, "pool")
    print(f"pool: {made}", flush=True)
    return 0
