"""A real Slurm of two nodes inside of a cluster of namespaces: munged and slurmctld on node1, slurmd on both."""

import os
import shutil
from pathlib import Path

import pytest

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


def require_slurm() -> None:
    """Skip the test where Slurm cannot run."""
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        pytest.skip(f"no Slurm here: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("slurmd takes root's rights to change groups, which nobody has in a user namespace: run as root")


def start(folder: Path) -> str:
    """Shell commands that start Slurm in the cluster that they run in; SLURM_CONF is set after them, and what the
    cluster says of its hosts is unset, so that Slurm alone says it."""
    for name in ("state", "node1", "node2"):
        (folder / name).mkdir()
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
