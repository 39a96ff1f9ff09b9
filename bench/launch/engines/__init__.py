"""How the ranks of one machine are started: one file per engine, with ``command(config, run_dir, placement)``,
and ``lacking(config)`` where it cannot start every config here: why not, after the mode's name, or "".

To add an engine: its file, its line here, and its name in LAUNCHERS of bench/config/modes.py.
"""

from bench.launch.engines import horovodrun, in_process, mpirun, spawn, torchrun

ENGINES = {"in-process": in_process, "torchrun": torchrun, "spawn": spawn, "mpirun": mpirun, "horovodrun": horovodrun}


def lacking(config) -> str:
    """Why a config's engine cannot start it here, after its mode's name; "" where it can."""
    engine = ENGINES[config.launcher]
    return engine.lacking(config) if hasattr(engine, "lacking") else ""
