"""`bench predict memory` as a person meets it: a table, what was assumed, and one line for what cannot be."""

import pytest

from bench import __main__ as cli
from bench.errors import ExitCode
from tests.runs import TINY, bench, flags

pytestmark = pytest.mark.slow
SMALL = ("predict", "memory", *flags(**TINY), "--data=digits", "--image-size=32")


def said(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main([*SMALL, *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_every_mode_has_its_columns_and_the_largest_batch(capsys):
    code, out, _ = said(capsys, "--gpus=2", "--memory-gib=1", "--batch=8", "--data=synthetic")
    assert code == 0
    heads = next(line for line in out.splitlines() if "horovod" in line).split()
    assert heads == ["single", "dp", "dp", "ddp", "horovod", "independent"]
    batches = [int(cell) for cell in next(line for line in out.splitlines() if "largest BATCH" in line).split()[2:]]
    assert len(batches) == 6 and min(batches) >= 8
    assert "predicted, not measured" in out and "is an assumption" in out and "dp: device 0 holds" in out


def test_a_batch_that_does_not_fit_is_told_the_largest_that_does(capsys):
    code, out, err = said(capsys, "--mode=ddp", "--gpus=2", "--memory-gib=0.6", "--batch=5000", "--data=synthetic")
    most = int(next(line for line in out.splitlines() if "largest BATCH" in line).split()[-1])
    assert code == ExitCode.FOUND and not err
    assert out.splitlines()[-1] == f"BATCH=5000 does not fit: MODE=ddp BATCH={most} at most in 0.6 GiB"
    code, *_ = said(capsys, "--mode=ddp", "--gpus=2", "--memory-gib=0.6", f"--batch={most}", "--data=synthetic")
    assert code == 0


def test_a_process_on_the_cpu_gets_its_share_of_what_is_there(capsys):
    code, out, _ = said(capsys, "--mode=ddp", "--gpus=2", "--device=cpu", "--batch=4")
    assert code == 0 and "available now, over 2 processes" in out and "Python, torch" in out


def test_every_mode_has_the_same_program_beside_its_tensors(capsys):
    _, out, _ = said(capsys, "--modes=single,dp,ddp", "--gpus=2", "--device=cpu", "--batch=4")
    sizes = next(line for line in out.splitlines() if "Python, torch" in line).split()[2:]
    assert len(sizes) == 3 and len(set(sizes)) == 1


def test_each_mode_gets_the_share_of_its_own_processes(capsys):
    code, out, _ = said(capsys, "--modes=single,ddp", "--gpus=2", "--device=cpu", "--batch=4")
    assert code == 0 and "available now, over 2 processes, and" in out and "available now, and" in out


def test_without_data_it_is_of_images_of_224_pixels(capsys):
    planned = ("predict", "memory", "--model=shufflenet_v2_x0_5", "--mode=single", "--device=cpu")
    assert cli.main([*planned, "--batch=1000000"]) == ExitCode.FOUND
    said = capsys.readouterr()
    assert "synthetic at 224 px" in said.out and "images of 224 px" in said.out
    assert "MEMORY_GIB=16 predicts for GPUs" in said.out
    assert cli.main([*planned, "--batch=4", "--data=digits"]) == 0
    assert "digits at 16 px" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--mode=single", "--gpus=2", "--memory-gib=16"), "MODE=single"),
        (("--memory-gib=plenty",), "MEMORY_GIB=plenty: the memory of one device in GiB, as in 16"),
        (("--memory-gib=-1",), "MEMORY_GIB=-1: the memory of one device"),
        (("--model=resnet19", "--memory-gib=16"), "unknown MODEL=resnet19: did you mean"),
        (("--mode=ddp", "--device=cuda"), "DEVICE=cuda, but no GPU is visible"),
        (
            ("--modes=single,dp", "--gpus=2", "--batch=1", "--model=shufflenet_v2_x0_5"),
            "BATCH=2 or more, or NORM=group",
        ),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, line):
    code, out, err = said(capsys, *arguments)
    assert code == 2 and line in err and len(err.splitlines()) == 1 and not out


OWN = """
import torch
from torch import nn
class Net(nn.Linear):
    def forward(self, x, scale):
        rows = super().forward(x) * scale[:, None]
        return {"rows": rows, "nothing": None}
def build(outputs):
    return Net(3, outputs)
def datasets():
    return [((torch.ones(3), 1.0), i % 2) for i in range(48)], None, 2
def step(model, inputs, targets):
    out = model(inputs[0], scale=inputs[1])
    return out, nn.functional.cross_entropy(out["rows"], targets)
"""


def test_a_model_of_several_inputs_that_returns_a_dict_is_predicted_in_every_mode(tmp_path, capsys):
    (path := tmp_path / "mine.py").write_text(OWN)
    own = (
        "predict",
        "memory",
        f"--model={path}:build",
        f"--data={path}:datasets",
        "--device=cpu",
        "--gpus=2",
        "--batch=4",
    )
    assert cli.main([*own, "--modes=single,dp,ddp,horovod,zero1,fsdp,local"]) == 0
    out = capsys.readouterr().out
    batches = next(line for line in out.splitlines() if "largest BATCH" in line).split()[2:]
    assert batches == ["48"] + ["24"] * 6  # as many as the data have
    path.write_text(OWN.replace("return {", "rows = rows if rows.sum().item() else rows\n        return {"))
    other = path.rename(tmp_path / "other.py")  # a file is loaded once in a process
    assert cli.main([each.replace(str(path), str(other)) for each in own]) == 2
    error = capsys.readouterr().err
    assert "depends on the values in its tensors" in error and "(other.py, line 7)" in error
    assert "MEMORY=1 measures it" in error and error.count("\n") == 1


def test_shapes_that_do_not_fit_are_one_line(tmp_path):
    """In a process of its own: torch logs them, with a traceback, to what was standard error when it was imported."""
    (path := tmp_path / "mine.py").write_text(OWN.replace("Net(3,", "Net(4,"))
    said = bench("predict", "memory", f"--model={path}:build", f"--data={path}:datasets", "--device=cpu", "--batch=4")
    assert said.code == 2 and said.stderr.count("\n") == 1 and "(mine.py, line 6)" in said.stderr, said.stderr
