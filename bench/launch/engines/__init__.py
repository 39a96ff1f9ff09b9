"""Launchers that start the ranks of one machine: one file each, with ``command(config, run_dir, placement)`` and, if it
cannot start every config, ``lacking(config)``. To add one: its file, its line here, its name in LAUNCHERS of
config/modes.py."""

from bench.launch.engines import horovodrun, in_process, mpirun, spawn, torchrun

ENGINES = {"in-process": in_process, "torchrun": torchrun, "spawn": spawn, "mpirun": mpirun, "horovodrun": horovodrun}


def lacking(config) -> str:
    """Why a config's launcher cannot start it here, a phrase after the mode's name; else ""."""
    engine = ENGINES[config.launcher]
    return engine.lacking(config) if hasattr(engine, "lacking") else ""
