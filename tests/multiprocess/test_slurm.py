"""Slurm, the real one: our templates submitted to slurmctld, on two nodes of a cluster of namespaces, with munged and
slurmctld on node1 and slurmd on both."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests import runs
from tests.cluster import on

PROGRAMS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"}
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=node[1-2] CPUs=4
PartitionName=all Nodes=ALL Default=YES
"""
# What `make bench MODE=ddp VENV=none` does, less its set-up. Launchers and ranks begin with torch.
MAKE = f"""#!{sys.executable}
import os, sys
target, *given = [word for word in sys.argv[1:] if not word.startswith("VENV=")]
pairs = [word.partition("=") for word in given]
flags = ["--" + name.lower().replace("_", "-") + "=" + value for name, _, value in pairs]
program = [sys.executable, "-c", {{!r}}, "bench"]
os.execv(sys.executable, [*program, "run" if target == "bench" else target, *flags])
"""


def start_slurm(folder: Path) -> str:
    """Shell commands that start Slurm in the cluster that they run in; SLURM_CONF is set after them, and what the
    cluster says of its hosts is unset, so that Slurm alone says it."""
    for name in ("state", "node1", "node2"):
        (folder / name).mkdir(parents=True)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = " ".join(f"--{option}={folder}/munge.{end}" for option, end in files.items())
    ready = '[ "$(sinfo -h -t idle -o %D)" = 2 ]'
    return f"""
        export SLURM_CONF={folder}/slurm.conf
        unset BENCH_HOSTS BENCH_REMOTE BENCH_IFACE
        munged --force {munge} && slurmctld && {on("node1", "slurmd")} && {on("node2", "slurmd")} || exit 90
        for i in $(seq 150); do {ready} && break; sleep 0.2; done
        {ready} || {{ sinfo -R; tail {folder}/*.log; exit 91; }} >&2
    """


def submitted(name: str, words: str, folder: Path) -> str:
    """Shell commands that submit a template, as it is but for the GPUs, which are not here, and for who is called; wait
    for its end, and print its exit code. (`sbatch --wait` would look after 2, 10 and 42 seconds.)"""
    text = (runs.ROOT / "tutorials" / "manual" / "templates" / "slurm" / name).read_text()
    text = text.replace("#SBATCH --gpus-per-node=4\n", "").replace("python3 -m", f"{sys.executable} -m")
    (folder / name).write_text(text)
    return f"""
        job=$(sbatch --parsable --ntasks-per-node=1 --output={folder}/log {folder / name} {words}) || exit 92
        while [ -n "$(squeue -h -j $job -o %T)" ]; do sleep 0.2; done
        scontrol show job $job | grep -o " ExitCode=[0-9]*"; cat {folder}/log >&2
    """


def test_templates(cluster, tmp_path, forked_programs):
    """`HOSTS=slurm` with srun as REMOTE, and a run that srun itself has started."""
    if missing := sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None}):
        pytest.skip(f"no Slurm here: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("slurmd takes root's rights to change groups, which nobody has in a user namespace: run as root")
    (tmp_path / "make").write_text(MAKE.format(runs.WITH_PYTHON.format(forked_programs.python)))
    (tmp_path / "make").chmod(0o755)
    small = runs.SMALL | {"mode": "ddp", "out": tmp_path / "out"}
    pairs = shlex.join(f"{name.upper()}={value}" for name, value in small.items())
    result = cluster(f"""
        {start_slurm(tmp_path / "slurm")}
        export PATH={tmp_path}:$PATH
        {submitted("hosts.sbatch", f"bench {pairs}", tmp_path)}
        {submitted("join.sbatch", shlex.join(runs.flags(**small)), tmp_path)}
    """, out=tmp_path / "out", timeout=500)  # fmt: skip
    assert result.stdout.split() == ["ExitCode=0", "ExitCode=0"], result.stderr
    assert [log.read_text() for folder in result.run_dirs for log in sorted(folder.glob("rank*.log"))] == [""] * 4
    records = [json.loads((folder / "record.json").read_text()) for folder in result.run_dirs]
    assert [record["status"] for record in records] == ["ok", "ok"]
    for record in records:
        assert [(node["name"], node["interface"]) for node in record["nodes"]] == [("node1", "eth0"), ("node2", "eth0")]
        assert record["network"]["label"] == "2 namespaces of one machine, links without a limit"
