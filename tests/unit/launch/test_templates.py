"""The templates for Kubernetes: what of them can be checked without it. Those for Slurm are run: test_slurm.py."""

import re
import shlex

import yaml

from bench.cli import COMMANDS
from tests.runs import ROOT

TEMPLATES = ROOT / "tutorials" / "manual" / "templates"


def manifest(name: str) -> tuple[dict, dict]:
    """A manifest of Kubernetes, and the options of the `bench run` in it, read as `bench` reads them."""
    text = (TEMPLATES / "kubernetes" / name).read_text()
    assert text.startswith("# Not run here.")
    (line,) = re.findall(r"-m bench run (.*?)(?: \|\||$)", text, re.MULTILINE)
    return yaml.safe_load(text)["spec"], vars(COMMANDS["run"].parse(shlex.split(line.strip("'\"]"))))


def test_ddp_for_kubeflows_trainer():
    spec, options = manifest("ddp.yaml")
    gpus = spec["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node={gpus} " in spec["trainer"]["args"][0] and options["mode"] == "ddp"


def test_horovod_for_the_mpi_operator():
    spec, options = manifest("horovod.yaml")
    replicas, slots = spec["mpiReplicaSpecs"], spec["slotsPerWorker"]
    (launcher,), (worker,) = (replicas[each]["template"]["spec"]["containers"] for each in ("Launcher", "Worker"))
    assert launcher["command"][launcher["command"].index("-np") + 1] == str(slots * replicas["Worker"]["replicas"])
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == slots and worker["image"] == launcher["image"]
    assert options["mode"] == "horovod"
