"""`bench predict memory` as a person meets it: a table, and one line for what cannot be predicted."""

import pytest

from bench import __main__ as cli
from bench.errors import ExitCode
from tests.runs import TINY, flags

pytestmark = pytest.mark.slow
SMALL = ("predict", "memory", *flags(**TINY), "--data=digits", "--image-size=32")
ON_CPU = ("--gpus=2", "--device=cpu", "--batch=4")


def predicted(capsys, *arguments: str, given: tuple = SMALL) -> tuple[int, dict[str, list[str]], str]:
    """Exit code, the table's cells by the name of its row, and all that was printed."""
    code = cli.main([*given, *arguments])
    out = capsys.readouterr().out
    rows = {" ".join(cells[:2]): cells[2:] for line in out.splitlines() if len(cells := line.split()) > 2}
    return code, rows, out


def test_every_mode_has_its_columns_and_the_largest_batch(capsys):
    code, rows, out = predicted(capsys, "--gpus=2", "--memory-gib=1", "--batch=8", "--data=synthetic")
    heads = next(line for line in out.splitlines() if "horovod" in line).split()
    batches = [int(cell) for cell in rows["largest BATCH"]]
    assert code == 0 and heads == ["single", "dp", "dp", "ddp", "horovod", "independent"]
    assert len(batches) == 6 and min(batches) >= 8


def test_a_batch_that_does_not_fit_is_told_the_largest_that_does(capsys):
    given = ("--mode=ddp", "--gpus=2", "--memory-gib=0.6", "--data=synthetic")
    code, rows, out = predicted(capsys, *given, "--batch=5000")
    most = int(rows["largest BATCH"][-1])
    assert code == ExitCode.FOUND and "BATCH=5000" in out.splitlines()[-1] and f"BATCH={most}" in out.splitlines()[-1]
    assert predicted(capsys, *given, f"--batch={most}")[0] == 0


@pytest.mark.parametrize(("arguments", "named"), [
    (["--mode=single", "--gpus=2", "--memory-gib=16"], "MODE=single"),
    (["--model=resnet19", "--memory-gib=16"], "MODEL=resnet19"),
    (["--mode=ddp", "--device=cuda"], "DEVICE=cuda"),
    ([*ON_CPU, "--modes=single,dp", "--batch=1", "--model=shufflenet_v2_x0_5"], "BATCH=2"),
])  # fmt: skip
def test_what_cannot_be_predicted_is_refused_by_name(capsys, arguments, named):
    assert cli.main([*SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


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
    own = (f"--model={path}:build", f"--data={path}:datasets", *ON_CPU)
    modes = "--modes=single,dp,ddp,horovod,zero1,fsdp,local"
    code, rows, _ = predicted(capsys, *own, modes, given=SMALL[:2])
    assert code == 0 and rows["largest BATCH"] == ["48"] + ["24"] * 6  # as many as the data have
    path.write_text(OWN.replace("return {", "rows = rows if rows.sum().item() else rows\n        return {"))
    other = path.rename(tmp_path / "other.py")  # a file is loaded once in a process
    assert cli.main([*SMALL[:2], *(each.replace(str(path), str(other)) for each in own)]) == 2
    error = capsys.readouterr().err
    assert "(other.py, line 7)" in error and "MEMORY=1" in error and error.count("\n") == 1
