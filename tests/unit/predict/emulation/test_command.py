"""What `bench cluster emulate` refuses before it makes a cluster."""

import pytest

from bench import __main__ as cli
from tests import profiles


@pytest.mark.parametrize(("words", "said"), [
    (["--mode=ddp"], "COMPUTE=… is needed"),
    (["--mode=single", "--compute=RUN"], "MODE=single cannot be emulated: choose of ddp, horovod, zero1, fsdp"),
    (["--mode=ddp", "--compute=/nowhere"], "/nowhere is no record"),
    (["--mode=ddp", "--compute=RUN", "--link=fast"], "LINK=fast"),
    (["--mode=ddp", "--compute=RUN", "--link=25gbit"], "needs links of 25000 Mbit/s"),
    (["--mode=ddp", "--compute=RUN", "--dilate=0.5"], "DILATE=0.5: a number from 1"),
    (["--mode=ddp", "--compute=RUN", "--nodes=1"], "NODES=1: a whole number from 2 to 64"),
    (["--mode=ddp", "--compute=RUN", "--cycle-time-ms=5"], "CYCLE_TIME_MS=5.0 is an option of MODE=horovod"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line_before_a_cluster_is_made(words, said, tmp_path, capsys):
    run = str(profiles.record(tmp_path / "profile"))
    words = [word.replace("RUN", run) for word in words]
    assert cli.main(["cluster", "emulate", *words, f"--out={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()
