"""`bench network` with real ranks: what it measures is there, is read again, and says where it was measured."""

import time

import psutil

from bench import __main__ as cli
from bench.record.read import find_records
from bench.tasks.network import record as network_record
from bench.tasks.network import result
from tests import runs
from tests.multiprocess import hangs
from tests.multiprocess.broken import GONE_WITHIN
from tests.runs import finish, left_behind, needs_horovod, start

LABEL = "two processes, a made-up label"
LIMIT_S = 15


@needs_horovod
def test_gloo_and_horovod_between_two_processes(tmp_path, capsys, copied_python):
    words = ("--sizes=4KiB,64KiB", "--repeats=6", "--max-minutes=30", "--timeout=200", "--device=cpu")
    done = runs.bench("network", "--gpus=2", *words, "--out", tmp_path, env={"BENCH_NETWORK": LABEL}, out=tmp_path).ok()
    records, refused = network_record.find(tmp_path)
    assert refused == [] and [record.backend for record in records] == ["gloo", "horovod"]
    assert find_records(tmp_path, needed=False) == ([], [])  # no table of runs, no pool, sees them
    series = result.series_of(records)
    names = [each.operation.name for each in series]
    assert names == ["ping_pong", "all_reduce", "all_gather", "reduce_scatter", "all_reduce"]
    gloo, horovod = (result.best_products(record) for record in records)
    assert {"fp32", "bf16"} <= gloo.keys() and horovod == {} and "TFLOP/s" in done.stdout
    for each in series:
        assert [times.nbytes for times in each.operation.times] == [2**12, 2**16] and each.operation.left_out == []
        assert all(len(times.seconds) == 6 and min(times.seconds) > 0 for times in each.operation.times)
        assert each.title in done.stdout
    (picture,) = tmp_path.glob("*/pictures/network.svg")
    assert LABEL in done.stdout and LABEL in picture.read_text()
    assert cli.main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert LABEL in page and records[0].suite in page and LABEL in capsys.readouterr().out


def test_a_rank_that_is_stopped_is_named_and_nothing_is_left(tmp_path, forked_programs):
    """It waits forever in a message: the run is ended after TIMEOUT, in one line."""
    words = ("--backends=gloo", "--sizes=4KiB,64KiB", "--repeats=1000", f"--timeout={LIMIT_S}", "--device=cpu")
    words = ("network", "--gpus=2", *words, "--out", tmp_path)
    process = start(*words, module=hangs.__name__, copies=forked_programs)
    psutil.Process(runs.both_step(tmp_path, "network-*/*/")[1].pid).suspend()
    since = time.monotonic()
    done = finish(process, tmp_path, timeout=200)
    assert done.code == 1 and time.monotonic() - since > LIMIT_S - 1
    assert "rank 1" in done.last_error_line and "SIGSTOP" in done.last_error_line
    assert left_behind(process.pid, within=GONE_WITHIN) == [] and network_record.find(tmp_path) == ([], [])
    (failed,) = find_records(tmp_path)[0]
    assert (failed.failure["kind"], failed.failure["rank"]) == ("hung", 1) and failed.label.study == "network"
