"""Training scripts of every style under a Watch: right ones are left as they are, and what is wrong is found.

Some of the scripts of bench/mistakes/scripts; the others with ``-m wide``, or by ``python -m tests.watched``.
"""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from bench.cli.mistake import show
from bench.files import LINUX
from bench.mistakes import DETECTED
from bench.mistakes.scripts import SHORT, change, read
from tests.runs import ROOT
from tests.watched.script import scripts

forks = pytest.mark.skipif(not LINUX, reason="the scripts' ranks are forked")

SOME = (
    "right/accumulate_no_sync", "right/amp_scaler", "right/batch_sampler_set_epoch", "right/data_parallel",
    "right/evaluation_in_eval_mode", "right/gan", "right/horovod_mnist", "right/isinstance_checks",
    "right/lazy_and_traced", "right/list_of_batches", "right/local_sgd_declared", "right/repeated_augmentation",
    "right/save_keywords", "right/torchrun_tutorial",
    "wrong/augmentation_own_generator", "wrong/counted_unreported", "wrong/exchange_module_called",
    "wrong/group_never_joined", "wrong/hidden_step_resume_epoch", "wrong/load_others_alone", "wrong/lone_barrier",
    "wrong/memory_outputs_kept", "wrong/metrics_loss_over_whole", "wrong/metrics_printed_by_rank",
    "wrong/random_same_dropout", "wrong/rates_scheduler_on_rank0", "wrong/reshuffle_same_generator",
    "wrong/schedule_once_per_rank", "wrong/stale_replaced_head", "wrong/strict_filtered_to_nothing",
    "wrong/stuck_stream", "wrong/sum_under_scaler", "wrong/targets_masked_mean", "wrong/use_swapped",
    "wrong/weights_epoch_alone", "wrong/whole_iterable_not_split", "wrong/writers_renamed",
)  # fmt: skip
ALL = {script.name: script for script in scripts()}


def run(python: str, path, *names) -> dict[str, dict]:
    """The table's rows by script."""
    command = [python, "-m", "tests.watched", *names, "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert path.exists(), done.stderr
    return {row["script"]: row for row in json.loads(path.read_text())["rows"]}


@pytest.fixture(scope="module")
def rows(tmp_path_factory, forked_programs):
    """The rows of some scripts, which run at once."""
    return run(forked_programs.python, tmp_path_factory.mktemp("watched") / "rows.json", *SOME)


@forks
@pytest.mark.parametrize("name", SOME)
def test_a_script_is_heard_as_it_is(rows, name):
    if ALL[name].horovod and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed (bench install-horovod)")
    assert rows[name]["good"], rows[name]["verdict"]


def test_every_mistake_is_made_in_three_ways():
    ways = Counter(name for script in ALL.values() if script.kind == "wrong" for name in script.told_of)
    on_gpus = {"extra-context"}  # of several ranks; tests/unit/observe/test_memory.py has a stub for them
    assert {name: ways[name] for name in DETECTED if ways[name] < 3 and name not in on_gpus} == {}


@pytest.mark.parametrize("text", ["a = 1\nb = 2\nb = 2\n", "a = 1\n"], ids=["twice", "missing"])
@pytest.mark.parametrize("line", ["-b = 2", "~b = 3"])
def test_a_difference_names_a_line_that_occurs_once(text, line):
    with pytest.raises(ValueError, match=r"occurs (0|2) times"):
        change(text, [line], "wrong/name")


def test_a_mistake_is_shown_in_a_few_lines_of_a_script(capsys):
    cases = read()
    for name, mistake in DETECTED.items():
        case = cases[mistake.case]
        assert {name} & set(", ".join(case.expectation.values()).split(", ")), "the script makes another mistake"
        changed = [line for line in case.difference() if line.startswith(("+", "-"))]
        assert 0 < len(changed) <= len(case.difference()) <= SHORT
        assert show(SimpleNamespace(name=name)) == 0
        assert "\n".join(case.difference()) in capsys.readouterr().out


@forks
@pytest.mark.wide
@pytest.mark.timeout(1500)
def test_all_scripts_are_heard_as_they_are(tmp_path):
    found = run(sys.executable, tmp_path / "rows.json")
    assert {name: row["verdict"] for name, row in found.items() if not row["good"]} == {}
