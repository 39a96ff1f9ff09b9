"""The templates for Slurm and Kubernetes: what of them can be checked without either."""

import re
import shlex

import pytest
import yaml

from bench.cli import COMMANDS
from tests.runs import ROOT

TEMPLATES = ROOT / "tutorials" / "manual" / "templates"


def options_of(script: str) -> dict:
    """The options of the `bench run` in a script, read as `bench` reads them."""
    (line,) = re.findall(r"-m bench run (.*?)(?: \|\||$)", script, re.MULTILINE)
    return vars(COMMANDS["run"].parse(shlex.split(line)))


def manifest(name: str) -> dict:
    """A manifest of Kubernetes."""
    return yaml.safe_load((TEMPLATES / "kubernetes" / name).read_text())


def test_ddp_for_kubeflows_trainer():
    found = manifest("ddp.yaml")
    assert (found["apiVersion"], found["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = found["spec"]["trainer"]
    (script,) = trainer["args"]
    assert f"--nproc-per-node={trainer['resourcesPerNode']['limits']['nvidia.com/gpu']} " in script
    assert options_of(script)["mode"] == "ddp"


def test_horovod_for_the_mpi_operator():
    found = manifest("horovod.yaml")
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    replicas, slots = found["spec"]["mpiReplicaSpecs"], found["spec"]["slotsPerWorker"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert launcher["command"][launcher["command"].index("-np") + 1] == str(slots * replicas["Worker"]["replicas"])
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == slots and worker["image"] == launcher["image"]
    assert options_of(launcher["args"][0])["mode"] == "horovod"


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("kubernetes/*.yaml")), ids=lambda path: path.name)
def test_what_was_not_run_says_so(path):
    assert path.read_text().startswith("# Not run here.")


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("slurm/*.sbatch")), ids=lambda path: path.name)
def test_slurms_directives_come_first(path):
    """sbatch reads no directive after the first command."""
    lines = path.read_text().splitlines()
    directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
    (command,) = [number for number, line in enumerate(lines) if not line.startswith("#")]
    assert lines[0] == "#!/bin/bash" and max(directives) < command and '"$@"' in lines[command]
