"""Launchers that start the ranks of one machine: one file each, with ``command(config, run_dir, placement)`` and, if it
cannot start every config, ``unavailable_reason(config)``. To add one: its file, its line here, its name in LAUNCHERS of
config/modes.py."""

from bench.launch.engines import horovodrun, in_process, mpirun, spawn, torchrun

ENGINES = {"in-process": in_process, "torchrun": torchrun, "spawn": spawn, "mpirun": mpirun, "horovodrun": horovodrun}


def unavailable_reason(config) -> str:
    """Why a config's launcher cannot start it here, a phrase after the mode's name; else ""."""
    engine = ENGINES[config.launcher]
    return engine.unavailable_reason(config) if hasattr(engine, "unavailable_reason") else ""
