"""HOSTS: how it is read, what the environment adds, and what goes together with it."""

import dataclasses
import os
from unittest import mock

import pytest

from bench.__main__ import command_of
from bench.config import hosts
from bench.config.command_line import from_arguments
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.studies.programs import impossible, in_mode

TWO = "node1:2,node2:2"


def config_of(*words: str, command: str = "run", **environment: str) -> RunConfig:
    found, rest = command_of([*command.split(), *words])
    with mock.patch.dict(os.environ, environment):
        return from_arguments(found.parse(rest))


def test_hosts_of_a_list_of_a_file_and_of_slurm(tmp_path):
    assert hosts.written_out("a, b:4", {}) == "a:1,b:4"
    file = tmp_path / "hosts"
    file.write_text("# two machines\nnode1:4\n\nnode2 slots=4  # as mpirun writes it\n")
    assert hosts.written_out(str(file), {}) == "node1:4,node2:4"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames gpu[01-02]" ] && printf "gpu01\\ngpu02\\n"\n')
    scontrol.chmod(0o755)
    allocation = {"SLURM_JOB_NODELIST": "gpu[01-02]", "SLURM_TASKS_PER_NODE": "3(x2)"}
    with mock.patch.dict(os.environ, {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}):
        assert hosts.written_out("slurm", allocation) == "gpu01:3,gpu02:3"
    with mock.patch.dict(os.environ, {"PATH": str(tmp_path / "empty")}), pytest.raises(UserError, match="scontrol"):
        hosts.written_out("slurm", allocation)


def test_gpus_of_hosts_are_all_that_the_mode_can_take_of_them():
    assert config_of("--hosts", TWO).num_devices == 4
    assert config_of("--hosts", TWO, "--mode", "single").num_devices == 1
    assert config_of("--hosts", TWO, "--mode", "dp").num_devices == 2
    assert config_of("--hosts", TWO, command="mistake unsynced-init").num_devices == 4  # and not that command's own 2
    one = config_of("--hosts", TWO, "--gpus", "2")
    assert [(host.name, host.slots) for host in one.machines] == [("node1", 2)]


def test_the_environment_says_what_was_not_given():
    site = {"BENCH_HOSTS": "n1,n2", "BENCH_REMOTE": "enter {host}", "BENCH_IFACE": "eth0"}
    found = config_of(**site)
    assert (found.hosts, found.remote, found.iface, found.num_devices) == ("n1:1,n2:1", "enter {host}", "eth0", 2)
    assert config_of("--iface", "ib0", **site).iface == "ib0"
    assert config_of(BENCH_REMOTE="enter {host}") == config_of()  # of no use without hosts


def test_a_mode_of_one_process_has_the_cores_of_one_machine_and_the_same_global_batch():
    two = resolve(RunConfig(hosts="node1:1,node2:1", num_devices=2), "cpu", 8)
    single = in_mode(two, "single")
    assert (single.threads, two.threads) == (4, 8) and single.global_batch == two.global_batch
    assert in_mode(two, "horovod").threads == 8
    first = dataclasses.replace(two, hosts="node1:2,node2:2")  # both devices on the first machine
    assert in_mode(first, "single").threads == 8 and not impossible(first, "dp")
