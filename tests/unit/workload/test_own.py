"""MODEL=FILE.py:FUNCTION and DATA=FILE.py:FUNCTION: what is taken, what takes its place, and what is refused."""

import contextlib
import hashlib
import itertools
import pickle
import re
import runpy
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from bench.cli.actions import new_workload
from bench.config.data_sets import data_kind
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.files import PROJECT
from bench.record.privacy import without_names
from bench.training.build import require_room
from bench.training.loop import build_optimizer
from bench.workload import batch, load_workload, own_code
from bench.workload.models import build_model
from bench.workload.own import OneProcess
from tests.runs import ROOT, refuses

NUMBERS = itertools.count()
GOOD = """
    import torch
    from torch import nn
    def build(outputs):
        return nn.Linear(3, outputs)
    def datasets():
        return [(torch.ones(3) * i, i % 2) for i in range(8)], [(torch.zeros(3), 1)] * 4, 2
"""


@pytest.fixture
def own(tmp_path):
    """A function: the workload of a file with this text, and its trained model's config."""

    def make(text: str = GOOD, **options):
        path = tmp_path / f"mine{next(NUMBERS)}.py"
        path.write_text(textwrap.dedent(text))
        given = {"model": f"{path}:build", "data": f"{path}:datasets", "per_device_batch": 2} | options
        return load_workload(resolve(RunConfig(mode="single", **given), "cpu", 2), torch.device("cpu"))

    return make


def tried(workload):
    """Data, model and the trial step, as a run does it."""
    train_set, _ = workload.load(OneProcess(), print)
    model = workload.model(workload.config, 0, print)
    workload.check(model, train_set)
    return model, train_set


def test_what_an_option_names():
    assert data_kind("a/b.py:datasets") == ("own", "a/b.py:datasets") and data_kind("tar:x.py")[0] == "tar"
    with refuses("DATA=imagefoldr:flowers", "FILE.py:FUNCTION"):
        RunConfig(data="imagefoldr:flowers")
    with refuses("MODEL=net.py", "MODEL=net.py:build"):
        RunConfig(model="net.py")
    config = without_names(RunConfig(model="/home/jane/thesis/net.py:build", data="/home/jane/thesis/net.py:sets"))
    assert (config.model, config.data) == ("net.py:build", "net.py:sets")


def test_data_come_as_batches_and_nothing_of_the_trial_step_stays(own):
    """Without a loss classes have cross entropy, and numbers the square error."""
    workload = own(GOOD.replace("nn.Linear(3, outputs)", "nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, outputs))"))
    model, train_set = tried(workload)
    fresh = workload.model(workload.config, 0, print)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    inputs, targets, unreadable = train_set[np.array([3, 8 + 2])]  # a draw of the second epoch
    assert inputs.tolist() == [[3.0] * 3, [2.0] * 3] and targets.tolist() == [1, 0] and unreadable == []
    source = hashlib.sha256(Path(workload.config.model.partition(":")[0]).read_bytes()).hexdigest()
    assert workload.facts(model) == {"model_source_sha256": source, "data_source_sha256": source}
    outputs, classes = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    assert workload.loss(outputs, classes) == nn.functional.cross_entropy(outputs, classes)
    assert workload.count(outputs, classes)[1] == 1  # the first is right
    numbers = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert workload.loss(outputs, numbers) == 0.25 and workload.count(outputs, numbers).tolist() == [0.5, -0.5]


def test_functions_beside_the_model_take_the_place_of_the_workloads(own):
    workload = own(GOOD + """
    def loss(outputs, targets):
        return (outputs ** 2).mean()
    def score(outputs, targets):
        return targets * 0.5
    def groups(model):
        return [{"params": [model.weight], "lr_factor": 0.1}, {"params": [model.bias], "weight_decay": 0.5}]
    def step(model, inputs, targets):
        outputs = model(inputs + 1)
        return outputs, 3 * loss(outputs, targets)
    """)  # fmt: skip
    model, _ = tried(workload)
    optimizer = build_optimizer(workload.config, model, workload.groups(model))
    assert [group.get("lr_factor") for group in optimizer.param_groups] == [0.1, None]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5]
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([0, 1])
    assert workload.count(outputs, targets).tolist() == [3.0, 0.5]
    outputs, loss = workload.step(model, torch.zeros(2, 3), targets, workload.loss)
    assert torch.equal(outputs, model(torch.ones(2, 3))) and loss == 3 * (outputs**2).mean()


def test_tuples_of_tensors_and_iterables(own):
    workload = own("""
    import torch
    from torch import nn
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 4), nn.Embedding(5, 4)
        def forward(self, inputs):
            x, which = inputs
            return self.a(x), self.b(which)
    def build(outputs):
        return Two()
    def examples(count):
        for i in range(count):
            yield (torch.ones(2) * i, i % 5), (torch.zeros(4), float(i))
    def datasets():
        return examples(12), None, 4
    def loss(outputs, targets):
        a, b = outputs
        zeros, numbers = targets
        return ((a + b - zeros) ** 2).mean() + numbers.mean() * 0
    def score(outputs, targets):
        return targets[1]
    """)  # fmt: skip
    _, train_set = tried(workload)
    (x, which), (zeros, numbers), _ = train_set[np.array([7, 1])]
    assert x.tolist() == [[7.0, 7.0], [1.0, 1.0]] and which.tolist() == [2, 1] and zeros.shape == (2, 4)
    assert numbers.dtype == torch.float32 and len(train_set) == 12
    assert [part.shape for part in workload.blank()] == [(1, 2), (1,)]


LINEAR, IMAGE, CLASS = "nn.Linear(3, outputs)", "torch.ones(3) * i", "i % 2)"
NO_LENGTH = "type('', (), {'__len__': lambda self: -1, '__getitem__': exit})()"
WRONG = [  # what replaces what, and what the error names
    ("def build", "def biuld", "MODEL=", "build", "biuld", "datasets"),
    ("import torch\n", "import trch\n", "trch"),
    ("def build(outputs):", "def build(outputs)", "SyntaxError", "line"),
    (LINEAR, "nn.Linear(outputs)", "TypeError", "line 5"),
    (LINEAR, "nn.Linear(2**24, 2**24)", "MODEL="),
    (LINEAR, "outputs", "MODEL=", "int", "torch.nn.Module"),
    (LINEAR, "nn.ReLU()", "MODEL="),
    (LINEAR, "nn.LazyLinear(outputs)", "MODEL="),
    (LINEAR, "nn.Linear(4, outputs)", "inputs [2, 3]", "targets [2]"),
    (LINEAR, "nn.Linear(3, 1)", "outputs [2, 1]", "class 1"),
    (CLASS, "i / 2)", "outputs [2, 2]", "targets [2]"),
    ("* 4, 2", "* 4", "DATA="),
    ("return [(", "return [( 0, ", "tuple of 3"),
    ("range(8)", "range(0)", "DATA="),
    ("range(8)", "range(1)", "2 examples", "DATA="),
    (IMAGE, "torch.ones(i)", "collate(examples)"),
    (IMAGE, "None", "NoneType", "collate(examples)"),
    ("(torch.ones(3) * i, i % 2)", "{'x': i}", "dict", "collate(examples)"),
    (IMAGE, "{'x': torch.ones(3)}", "{x: [2, 3]}", "step("),
    (CLASS, "(i % 2, i))", "([2], [2])", "loss("),
    (IMAGE, "'text'", "str"),
    (LINEAR, "exit(0)", "MODEL=", "SystemExit: 0", "line 5"),
    (IMAGE, "exit(0)", "DATA=", "SystemExit: 0", "line 7"),
    ("[(torch.ones(3) * i, i % 2) for i in range(8)]", NO_LENGTH, "DATA=", "ValueError"),
    (LINEAR, "spared(nn.Linear(3, outputs))", "spare.weight, spare.bias", "FREEZE="),
]
SPARED = """
    def spared(model):
        model.spare = nn.Linear(2, 2)
        return model
"""


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row[1].strip())
def test_what_cannot_be_trained_is_one_line(own, row):
    old, new, *values = row
    assert GOOD.count(old) == 1
    with refuses(*values):
        tried(own(GOOD.replace(old, new) + SPARED))


COLLATED = f"""{GOOD}
    def collate(examples):
        inputs, targets = zip(*examples)
        classes = torch.tensor(targets, dtype=torch.float64)
        return {{"rows": list(inputs), "names": ["a"] * len(inputs)}}, {{"classes": classes}}
    def step(model, inputs, targets):
        outputs = model(torch.stack(inputs["rows"]))
        return outputs, ((outputs[:, 0] - targets["classes"]) ** 2).mean()
"""


def test_collate_is_called_for_each_forward_pass(own):
    workload = own(COLLATED, accumulate=2, per_device_batch=3)
    _, train_set = tried(workload)
    inputs, targets, unreadable = train_set[np.arange(6)]
    assert unreadable == [] and batch.length(inputs) == batch.length(targets) == 6
    parts = [batch.opened(part) for part in batch.chunks(inputs, 2)]
    assert [[int(row[0]) for row in part["rows"]] for part in parts] == [[0, 1, 2], [3, 4, 5]]
    assert batch.opened(targets)["classes"].dtype == torch.float32
    assert [row.tolist() for row in workload.blank()["rows"]] == [[0.0] * 3]


@pytest.mark.parametrize(("text", "values"), [
    (COLLATED.replace("return {", "return 1, {"), ("collate", "int", "(inputs, targets)")),
    (COLLATED.replace("list(inputs)", "inputs[9]"), ("IndexError", "line 12")),
    (COLLATED, ("{classes: [2]}", "score(")),
    (COLLATED + "    def score(outputs, targets): return outputs[0, 0]", ("score(outputs, targets)", "[]")),
    (GOOD + "    def step(model, inputs, targets): return None, model(inputs).mean()", ("MODEL=",)),
])  # fmt: skip
def test_what_is_wrong_with_collate_or_score_is_one_line_before_training(own, text, values):
    """What a step returns is scored after each epoch."""
    with refuses(*values):
        tried(own(text, epochs=1, per_device_batch=4))


def test_a_validation_calls_step_where_the_model_alone_cannot_be_called(own):
    workload = own(COLLATED + """
    def loss(outputs, targets):
        return (outputs[:, 0] - targets["classes"]).abs().mean()
    def score(outputs, targets):
        return targets["classes"]
    """, epochs=1, per_device_batch=4)  # fmt: skip
    model, train_set = tried(workload)
    inputs, targets, _ = train_set[np.arange(4)]
    outputs = workload.forward(model, inputs, targets)
    assert workload.count(outputs, targets)[1] == 2 and model.training
    assert workload.forward(model, workload.blank(), None).shape == (1, 2)  # where each forward pass is a collective


def test_two_files_of_one_name_are_two_modules(own, tmp_path):
    """A loader worker that is spawned, and a saved object, find each class by its module's name."""
    model, data, wrong = (tmp_path / place / "net.py" for place in ("model", "data", "wrong"))
    net = "from torch import nn\nclass Net(nn.Linear): pass\ndef build(outputs): return Net(3, outputs)\n"
    for path, text in ((model, net), (data, textwrap.dedent(GOOD)), (wrong, "raise ValueError(3)")):
        path.parent.mkdir()
        path.write_text(text)
    net, _ = tried(own(model=f"{model}:build", data=f"{data}:datasets"))
    with refuses("ValueError: 3"):
        own(model=f"{wrong}:build")
    assert type(pickle.loads(pickle.dumps(net))) is type(net)


@pytest.mark.parametrize("beside", ["one_{}.py", "one_{}/__init__.py"])
@pytest.mark.parametrize("first", ["import {name}", "def build(outputs): import {name}", ""])
def test_two_files_whose_neighbours_have_one_name_are_refused(tmp_path, beside, first):
    name = f"one_{abs(hash(tmp_path))}"  # a new name for each test: a module stays in its process
    for folder, text in (("a", first), ("b", "import middle"), ("c", f"import {name}")):
        neighbour = tmp_path / folder / beside.format(name.removeprefix("one_"))
        neighbour.parent.mkdir(parents=True)
        neighbour.write_text(f"PLACE = {folder!r}")
        (tmp_path / folder / "mine.py").write_text(text.format(name=name) + textwrap.dedent(GOOD))
    (tmp_path / "b" / "middle.py").write_text(f"from {name} import PLACE")
    files = [tmp_path / folder / "mine.py" for folder in "abc"]
    own_code.loaded("MODEL", f"{files[0]}:build")
    for file in files[1:]:
        with refuses(f"DATA={file}", name, files[0].parent):
            own_code.loaded("DATA", f"{file}:datasets")
    assert own_code.loaded("DATA", f"{files[0]}:datasets")  # both in one file


def test_the_manuals_model_takes_all_layers_of_a_file_but_those_it_leaves_out(tmp_path):
    page = (ROOT / "tutorials" / "manual" / "own_model.md").read_text()
    (text,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "LEFT_OUT" in each]
    weights = {name: torch.zeros_like(value) for name, value in resnet18(num_classes=10).state_dict().items()}
    (path := tmp_path / "mine.py").write_text(text.replace("weights.pt", str(tmp_path / "weights.pt")))
    torch.save(weights, tmp_path / "weights.pt")
    config = resolve(RunConfig(mode="single", model=f"{path}:build", freeze="conv1*"), "cpu", 2)
    model = build_model(config, 10, 0)
    assert model.fc.weight.any() and not model.layer1[0].conv1.weight.any()
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["conv1.weight"]
    torch.save({name: value for name, value in weights.items() if name != "conv1.weight"}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="AssertionError"):
        build_model(config, 10, 0)


def test_parameters_without_a_gradient_can_be_frozen(own):
    tried(own(GOOD.replace(LINEAR, f"spared({LINEAR})") + SPARED, freeze="spare.*"))


def test_ranks_with_other_data_are_refused(own):
    """Random data are the same on each."""
    workload, seen = own(), []
    workload.load(SimpleNamespace(gather=lambda item: seen.append(item) or [item]), print)
    with refuses("rank 0", "rank 1"):
        workload.load(SimpleNamespace(gather=lambda item: [item, [(8, "other"), seen[0][1]]]), print)
    first, second = (own(GOOD.replace(IMAGE, "torch.randn(3)")).load(OneProcess(), print)[0] for _ in range(2))
    assert torch.equal(first[np.arange(8)][0], second[np.arange(8)][0])


def test_the_template_is_written_once(tmp_path, capsys):
    path = tmp_path / "mine.py"
    assert new_workload.run(SimpleNamespace(file=str(path))) == 0
    assert f"--model {path}:build --data {path}:datasets" in capsys.readouterr().out
    with refuses(path):
        new_workload.run(SimpleNamespace(file=str(path)))


def test_timms_networks_by_name_with_their_activations_where_the_norm_goes():
    pytest.importorskip("timm", reason="timm is not installed")

    def config(model: str, **options):
        return resolve(RunConfig(mode="single", model=f"timm:{model}", image_size=32, **options), "cpu", 2)

    model = build_model(config("mobilenetv3_small_050", norm="none"), 7, 0)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    assert any(isinstance(module, nn.Hardswish) for module in model.modules())
    assert build_model(config("vit_tiny_patch16_224"), 7, 0)(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    with refuses("MODEL=timm:mobilenetv3_smal_050", "timm:mobilenetv3_small_050"):
        build_model(config("mobilenetv3_smal_050"), 7, 0)


def test_a_model_whose_gradients_find_no_room_is_refused(monkeypatch):
    mode = SimpleNamespace(replicated=True, topology=SimpleNamespace(world_size=2, num_devices=2))
    config = resolve(RunConfig(mode="ddp", num_devices=2, model="mine.py:build"), "cpu", 2)
    model = nn.Linear(1024, 1024, bias=False)  # 4 MiB
    for mib, fits in ((9, True), (7, False)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda mib=mib: SimpleNamespace(available=mib * 2**20))
        with contextlib.nullcontext() if fits else refuses("MODEL=mine.py:build", "1,048,576", "2 processes"):
            require_room(config, mode, model)
    model.requires_grad_(False)
    require_room(config, mode, model)  # frozen weights have no gradients


def test_keras_with_another_backend_is_refused_before_it_is_imported(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    config = resolve(RunConfig(mode="single", model="keras:ResNet50"), "cpu", 2)
    with refuses("jax", "KERAS_BACKEND=torch"):
        load_workload(config, torch.device("cpu"))
    with pytest.raises(ImportError, match="jax"):
        runpy.run_path(str(PROJECT / "tutorials" / "scripts" / "keras_fit.py"))
