"""Slurm, the real one: our templates submitted to slurmctld, on two nodes of a cluster of namespaces."""

import json
import shlex
import sys
from pathlib import Path

from tests import runs, slurm

# What `make bench MODE=ddp VENV=none` does, less its set-up.
MAKE = f"""#!{sys.executable}
import os, sys
target, *given = [word for word in sys.argv[1:] if not word.startswith("VENV=")]
pairs = [word.partition("=") for word in given]
flags = ["--" + name.lower().replace("_", "-") + "=" + value for name, _, value in pairs]
os.execv(sys.executable, [sys.executable, "-m", "bench", "run" if target == "bench" else target, *flags])
"""


def template(name: str, folder: Path) -> Path:
    """A template as it is, but for the GPUs, which are not here, and for who is called."""
    text = (runs.ROOT / "tutorials" / "manual" / "templates" / "slurm" / name).read_text()
    copy = folder / name
    copy.write_text(text.replace("#SBATCH --gpus-per-node=4\n", "").replace("python3 -m", f"{sys.executable} -m"))
    (folder / "make").write_text(MAKE)
    (folder / "make").chmod(0o755)
    return copy


def submitted(batch: str, log: Path) -> str:
    """Shell commands that submit a script, wait for its end, and print its exit code. (`sbatch --wait` would look
    after 2, 10 and 42 seconds.)"""
    return f"""
        job=$(sbatch --parsable --ntasks-per-node=1 --output={log} {batch}) || exit 92
        while [ -n "$(squeue -h -j $job -o %T)" ]; do sleep 0.2; done
        scontrol show job $job | grep -o " ExitCode=[0-9]*"; cat {log} >&2
    """


def test_templates(cluster, tmp_path):
    """`HOSTS=slurm` with srun as REMOTE, and a run that srun itself has started."""
    slurm.require_slurm()
    (tmp_path / "slurm").mkdir()
    log, out = tmp_path / "log", tmp_path / "out"
    small = runs.SMALL | {"mode": "ddp", "out": out}
    words = shlex.join(f"{name.upper()}={value}" for name, value in small.items())
    flags = shlex.join(runs.flags(**small))
    result = cluster(f"""
        {slurm.start(tmp_path / "slurm")}
        export PATH={tmp_path}:$PATH
        srun --nodes=2 hostname
        {submitted(f'{template("hosts.sbatch", tmp_path)} bench {words}', log)}
        {submitted(f'{template("join.sbatch", tmp_path)} {flags}', log)}
    """, out=out, timeout=500)  # fmt: skip
    lines = result.stdout.splitlines()
    assert sorted(lines[:2]) == ["node1", "node2"], result.stderr
    assert [line.strip() for line in lines[2:]] == ["ExitCode=0", "ExitCode=0"], result.stderr
    records = [json.loads((folder / "record.json").read_text()) for folder in result.run_dirs]
    assert len(records) == 2 and all(record["status"] == "ok" for record in records)
    for record in records:
        assert [node["name"] for node in record["nodes"]] == ["node1", "node2"]
        assert record["network"]["label"] == "2 namespaces of one machine, links without a limit"
