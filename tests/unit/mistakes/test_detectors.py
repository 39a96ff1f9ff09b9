"""bench/mistakes: each detector on what it must find and on what it must let pass; `bench mistake check` on records."""

import json

import pytest

from bench import __main__ as cli
from bench import mistakes
from bench.cli.actions import check_records as check
from bench.errors import ExitCode
from bench.mistakes import DETECTED, INJECTED, MISTAKES, Finding
from tests import records
from tests.runs import ROOT

EPOCH = {"draws": 100, "never": 0, "repeated": 0, "most": 1}
DATA = {"num_images": 100, "global_batch": 16, "epochs": [EPOCH, EPOCH], "never_seen": 0, "same_neighbours": 0.01,
        "shared_in_a_step": 0.0}  # fmt: skip
LOAD = {"file": "w.pt", "keys": 62, "missing": 0, "unexpected": 0, "strict": False, "prefix": None}
NORM = {"kind": "BatchNorm2d × 20", "images": 4, "synchronised": False, "disagreement": 0.3}
PLACE = {"file": "a/epochs.py", "line": 275, "function": "validate", "collective": True}
OTHER = PLACE | {"line": 150, "function": "end_epoch"}
LAUNCHED = {"variable": "WORLD_SIZE", "processes": 2}
WEIGHTS = {"looked_at": [0, 1, 2, 9], "apart_at": None, "layers": [], "together_again": False}
APART = WEIGHTS | {"apart_at": 2, "layers": ["fc.weight", "fc.bias"]}
OUTSIDE = "SGD.param_groups[1]['params'][0] (4 × 16)"
APART_OUTSIDE = WEIGHTS | {"apart_at": 0, "layers": [OUTSIDE], "outside": [OUTSIDE]}
PARAMETERS = {"tensors": 10, "steps": 9, "forgotten": [], "head_alone": False, "stale": 0, "missing": 0,
              "unchanged": [], "idle": []}  # fmt: skip
GRADIENT = {"over_mean": 1.0, "same_on_all_ranks": True, "exchanged": True, "steady": True, "passes": 1, "kind": "mean"}
RATE = {"used": 0.1, "meant": 0.1, "global_batch": 64, "for_batch": 64}
SMALL = RATE | {"global_batch": 256, "for_batch": 64, "meant": 0.4}
STEPS = {"batches": [[9, 9], [9, 9]], "images": [8, 8], "joined": False, "wrapped": True}
ZEROED = {"steps": 4, "kept": [], "lost": 0}
EVALUATED = {"looked_at": [9], "apart_at": None, "buffers": [], "ranks": 0}
RESTORED = {"weights": ["a", "a", "a"], "sent": [True] * 3, "moved": [True] * 3}  # a start with a fresh optimizer
APART_AT_ONCE = RESTORED | {"weights": ["a", "b", "b"], "moved": [False] * 3}
SCHEDULER = {"kind": "CosineAnnealingLR", "length": 80, "ends": True, "taken": 80, "here": 80}
CURVE = {"steps": 80, "peak": 0.1, "last": 0.001, "zeros": 1, "trend": None, "schedulers": [SCHEDULER]}
MIB = 2**20
MEMORY = {"place": ["host"] * 2, "steps": [[30, 90]] * 2, "bytes": [[900 * MIB, 905 * MIB], [900 * MIB, 990 * MIB]],
          "steadily": [True, False]}  # fmt: skip
CONTEXTS = {"own": [[0], [1]], "extra": [[], []], "current": [0, 1], "loaded": [[], []], "together": []}
EXTRA = CONTEXTS | {"extra": [[], [0]]}
TRAINED = {"loss": [[0.7, 0.6], [0.5, 0.4]], "by_examples": [[0.7, 0.6], [0.5, 0.4]], "examples": [[64, 64]] * 2}
APART_CONTENTS = {"apart": {"file": "best.pt", "step": 32, "by_rank": [0, 1, None, 1]}}
VALIDATED = {"validations": 2, "in_training_mode": 0, "layers": {}}
IN_TRAINING = VALIDATED | {"in_training_mode": 2, "layers": {"BatchNorm2d": 20}}
UNLOADED = {"files": [], "assigned": ""}
SHARED_OUT = [{"draws": 36, "examples": 36, "shared": 0, "shared_out": True}]
STUCK = [PLACE, OTHER | {"collective": False, "awaits_batch": True}, PLACE | {"collective": None}]
RIGHT = {
    "world_size": 2, "num_devices": 2, "exchanges": True, "trains": True,
    "start": {"parameters": ["a", "a"], "buffers": ["b", "b"]},
    "end": {"parameters": ["c", "c"], "buffers": ["d", "e"]},
    "data": DATA, "reported": {"top1": [[0.5, 0.6], [0.5, 0.6]], "images": [[36, 36], [36, 36]], "val_images": 36},
    "writers": {"record.json": [0], "rank1.log": [1]},
    "learning_rate": {"used": 0.1, "meant": 0.1, "global_batch": 64, "for_batch": 64},
    "augmentation": {"streams": ["a", "b"]},
    "gradient": GRADIENT,
    "loads": [[LOAD | {"missing": 2}], []], "norm": NORM | {"images": 8},
    "host_syncs": [{"where": "train.py:9 item", "per_step": 0.1}],
    "loader": {"wait_share": [0.1, 0.15], "workers": 2},
    "weights": WEIGHTS, "parameters": PARAMETERS, "group": {"joined": True, "launched": LAUNCHED},
    "rates": {"looked_at": 9, "apart_at": None, "by_rank": []}, "passes": {"steps": 20, "unsynced": 0},
    "forwards": {"trains": [9, 9], "evaluates": [3, 3], "buffers": [True, True]}, "others": {"ema": ["a", "a"]},
    "random": {"streams": ["0", "1"], "generators": []}, "steps": STEPS, "restored": RESTORED,
    "zero_grad": ZEROED, "evaluation": EVALUATED,
    "schedules": [CURVE], "targets": {"steps": 16, "counts": [44.0, 45.0], "ratio": 1.02, "most": 1.3},
    "memory": MEMORY, "contents": {"apart": None}, "contexts": CONTEXTS, "trained": TRAINED,
    "validated": {"times": 2, "silent": 0}, "eval_mode": VALIDATED, "unloaded": UNLOADED,
}  # fmt: skip


def epochs(**values) -> dict:
    """The data of a run whose epochs are otherwise."""
    return {"data": DATA | {"epochs": [EPOCH | values] * 2}}


WRONG = [
    ("unsynced-init", {"start": {"parameters": ["a", "b"]}}, "2 different sets of weights on 2 ranks"),
    ("unsynced-init", {"start": {"parameters": ["a", "b"]}, "weights": APART_OUTSIDE}, f"these differ: {OUTSIDE}"),
    ("drift", {"end": {"parameters": ["a", "b"]}}, "at the end, from one before the first step"),
    ("drift", {"end": {"parameters": ["a", "b"]}, "weights": APART}, "after step 2, first in fc.weight and 1 more"),
    ("whole-data", epochs(draws=200, repeated=100, most=2), "drew 200 times from 100 examples"),
    ("whole-data", epochs(never=25, repeated=36, most=2), "36 of them more than once"),
    ("whole-data", {"data": {"shared_in_a_step": 0.5}}, "50.0 % of a step's examples"),
    ("no-reshuffle", {"data": DATA | {"same_neighbours": 0.97}}, "97.0 %"),
    ("rank-metrics", {"reported": {"top1": [[0.5], [0.6]]}}, "top1 differs by rank: 0.5, 0.6 in the last epoch"),
    ("rank-metrics", {"reported": {"top1": [[0.5, 0.7], [0.6, 0.7]]}}, "top1 differs by rank: 0.5, 0.6 in epoch 1"),
    ("rank-metrics", {"reported": {"top1": [[0.5], [0.5]], "images": [[18], [18]], "val_images": 36}}, "18 of 36"),
    ("many-writers", {"writers": {"best.pt": [0, 1]}}, "best.pt by ranks 0, 1"),
    ("rank0-collective", {"hang": {"limit_s": 20, "where": [PLACE, OTHER]}}, "rank 0 at epochs.py:275 (validate)"),
    ("rank0-collective", {"hang": {"limit_s": 20, "where": [PLACE, OTHER | {"collective": None}]}}, "(end_epoch)"),
    ("lr-not-scaled", {"learning_rate": RIGHT["learning_rate"] | {"used": 0.05}}, "0.05"),
    ("same-augmentation", {"augmentation": {"streams": ["a", "a"]}}, "from 1 random streams"),
    ("same-augmentation", {"augmentation": {"streams": ["a", "b"], "again": ["numpy"]}}, "two epochs start with"),
    ("gradient-sum", {"gradient": {"over_mean": 2.0, "same_on_all_ranks": True, "kind": "mean"}}, "their sum"),
    ("gradient-sum", {"gradient": {"over_mean": 0.5, "same_on_all_ranks": True, "kind": "mean"}}, "divided twice"),
    ("strict-false", {"loads": [[LOAD | {"missing": 62, "unexpected": 62, "prefix": "module."}]]}, "0 of 62 keys"),
    ("strict-false", {"loads": [[LOAD | {"missing": 60, "unexpected": 60}]]}, "2 of 62 keys"),
    ("local-norm", {"norm": NORM}, "BatchNorm2d × 20 over 4 examples per device"),
    ("host-sync", {"host_syncs": [{"where": "train.py:9 item", "per_step": 1.0}]}, "train.py:9 item (1 a step)"),
    ("lost-remainder", {"data": DATA | epochs(never=6)["data"] | {"never_seen": 6}}, "6 of 100 examples"),
    ("lost-remainder", epochs(never=16), "16 of 100 examples"),
    ("strict-false", {"loads": [[LOAD | {"missing": 62, "unexpected": 62, "picked": True}]]}, "picked by name"),
    ("lr-not-scaled", {"learning_rate": SMALL | {"used": 0.1}}, "the recipe's, for 64 examples per step, is 0.4"),
    ("no-exchange", {"gradient": GRADIENT | {"exchanged": False}}, "stepped with its own gradient"),
    ("no-exchange", {"gradient": GRADIENT | {"own": [OUTSIDE]}}, f"steps with its own gradient of {OUTSIDE}"),
    ("no-group", {"group": {"joined": False, "launched": LAUNCHED}}, "WORLD_SIZE is 2"),
    ("forgotten-parameters", {"parameters": PARAMETERS | {"forgotten": ["fc.bias"], "missing": 1}}, "fc.bias"),
    ("forgotten-parameters", {"zero_grad": ZEROED | {"lost": 4}}, "zero or None at the step"),
    (
        "forgotten-parameters",
        {"parameters": PARAMETERS | {"unchanged": list("abcdefghij"), "idle": ["a"]}},
        "none of 10 parameters",
    ),
    ("no-zero-grad", {"zero_grad": ZEROED | {"kept": ["fc.weight"]}}, "in 1 gradient: fc.weight"),
    ("weights-not-loaded", {"unloaded": UNLOADED | {"assigned": "ResNet"}}, "ResNet.state_dict is no method"),
    ("no-eval", {"eval_mode": IN_TRAINING}, "2 of 2 validations computed with BatchNorm2d × 20 in training mode"),
    ("unsynced-buffers", {"evaluation": EVALUATED | {"apart_at": 9, "buffers": ["bn.mean"], "ranks": 2}}, "bn.mean"),
    ("stale-optimizer", {"parameters": PARAMETERS | {"stale": 2, "missing": 2}}, "2 of the optimizer's parameters"),
    ("lr-by-rank", {"rates": {"looked_at": 9, "apart_at": 4, "by_rank": [0.1, 0.05]}}, "in step 4"),
    ("unsynced-accumulation", {"passes": {"steps": 9, "unsynced": 8}}, "8 of the first 9 steps"),
    ("rank0-forward", {"forwards": RIGHT["forwards"] | {"evaluates": [3, 0]}}, "in evaluation 3, 0 times"),
    ("counted-twice", {"reported": RIGHT["reported"] | {"images": [[37, 37]] * 2}}, "37 examples were counted, of 36"),
    ("other-replica", {"others": {"ema": ["a", "b"]}}, "ema (2 different on 2 ranks)"),
    ("loader-starvation", {"loader": {"wait_share": [0.1, 0.4], "workers": 1}}, "40 %"),
    ("loader-starvation", {"loader": {"wait_share": [0.1, 0.4], "wait_s": [0.1, 0.1], "workers": 1}}, "40 %"),
    ("same-random", {"random": {"streams": ["0", "0"], "generators": ["torch"]}}, "from 1 random streams (torch)"),
    ("uneven-steps", {"steps": STEPS | {"batches": [[9, 9], [9, 8]]}}, "epoch 2 has 9, 8 batches"),
    ("uneven-steps", {"steps": STEPS | {"images": [8, 4]}}, "a step has 8, 4 examples"),
    ("hidden-step", {"restored": APART_AT_ONCE | {"moved": [False, True, True]}}, "the weights of ranks 1, 2, and"),
    ("hidden-step", {"restored": APART_AT_ONCE}, "has its state already"),
    (
        "schedule-length",
        {"schedules": [CURVE | {"last": 0.08, "schedulers": [SCHEDULER | {"length": 160}]}]},
        "made for 160 steps and was stepped 80 times; the last learning rate is 80 % of the highest",
    ),
    ("schedule-length", {"schedules": [CURVE, CURVE | {"zeros": 40}]}, "0 in 40 of 80 optimizer steps"),
    ("schedule-length", {"schedules": [CURVE | {"trend": "falls"}]}, "still falls, at 1 % of its peak"),
    (
        "uneven-targets",
        {"targets": {"steps": 16, "counts": [40.0, 57.0], "ratio": 1.4, "most": 3.2}},
        "over 40, 57 tar",
    ),
    ("memory-growth", {"memory": MEMORY | {"steadily": [True, True]}}, "1.5 MiB per optimizer step, from 900 MiB at"),
    (
        "load-by-rank",
        {"contents": APART_CONTENTS, "end": {"parameters": ["a", "b"]}, "weights": APART},
        "best.pt, after step 32: ranks 1, 3 got other contents than rank 0; the replicas differ after step 2",
    ),
    ("load-by-rank", {"contents": APART_CONTENTS}, "best.pt, after step 32: ranks 1, 3 got other contents than rank 0"),
    ("loader-stuck", {"hang": {"limit_s": 20, "where": STUCK}}, "20 s: rank 1 waits for a batch at epochs.py:150 (end"),
    ("extra-context", {"contexts": EXTRA | {"loaded": [[], [0]]}}, "on cuda:0, too: torch.load put tensors there"),
    ("extra-context", {"contexts": EXTRA | {"current": [0, 0]}}, "trains on cuda:1, and has a CUDA context on cuda:0"),
    ("extra-context", {"contexts": CONTEXTS | {"own": [[0], [0]], "together": [0, 1]}}, "models of ranks 0, 1 are on"),
]
SAID = {"images": [[64, 64]] * 2}  # of the training
WATCHED = {"kind": "Own", "shuffles": False, "set_epoch": False, "replacement": False, "repeats": False, "epochs": []}
ASKED_OF_DATA = [
    ("whole-data", epochs(repeated=36, most=3, by_one_rank=30), {}, "replacement"),
    ("whole-data", {"data": {"shared_in_a_step": 0.1}}, {"replacement": True}, "Own meant to draw with"),
    ("no-reshuffle", {"data": DATA | {"same_neighbours": 1.0}}, {}, "fixed (Own)"),
    ("no-reshuffle", {"data": DATA | {"same_neighbours": 0.9}}, {"shuffles": True}, "blocks"),
    ("lost-remainder", {"data": epochs(never=40)["data"] | {"never_seen": 40}}, {}, "held out"),
    ("lost-remainder", epochs(draws=60, never=40), {}, "a part of the examples"),
]
ASKED = [
    ("host-sync", {"host_syncs": [{"where": "train.py:9 item", "per_step": 1.0}], "device": "cpu"}, "train on a GPU"),
    ("no-exchange", {"gradient": GRADIENT | {"own": [OUTSIDE], "gathers": True}}, "cut over the ranks"),
    ("drift", {"weights": APART | {"together_again": True}}, "local SGD"),
    ("uneven-steps", {"steps": STEPS | {"batches": [[9], [8]], "joined": True}}, "end before the others"),
    ("uneven-steps", {"steps": STEPS | {"batches": [[9], [8]], "wrapped": False}}, "its own number"),
    ("no-exchange", {"gradient": GRADIENT | {"exchanged": False, "kind": "local SGD"}}, "local SGD"),
    ("unsynced-accumulation", {"passes": {"steps": 9, "unsynced": 6}, "gradient": GRADIENT | {"kind": "local SGD"}},
     "local SGD"),
    ("lr-not-scaled", {"learning_rate": SMALL | {"used": 0.2}}, "square root"),
    ("forgotten-parameters", {"parameters": PARAMETERS | {"forgotten": ["conv.weight"], "head_alone": True}}, "last"),
    ("forgotten-parameters", {"parameters": PARAMETERS | {"unchanged": ["x"], "idle": ["x"]}}, "take no part"),
    ("load-by-rank", {"contents": APART_CONTENTS}, "on purpose"),
    ("counted-twice", {"validations": [{"draws": 22, "examples": 21, "shared": 1}], "reported": {}}, "dropped before"),
    ("rank-metrics", {"reported": {"loss": [[0.3, 0.25]] * 2} | SAID}, "divided by the examples of all"),
    ("rank-metrics", {"reported": {"train_loss": [[1.2, 1.0]] * 2}}, "divided by the examples of all"),
    ("rank-metrics", {"reported": {"loss": [[0.6, 0.5]] * 2, "images": [[256, 256]] * 2}}, "mean over these examples"),
    ("rank-metrics", {"reported": {}, "validations": SHARED_OUT, "validated": {"times": 2, "silent": 2}}, "own part"),
    ("no-eval", {"eval_mode": IN_TRAINING}, "dropout sampled, on purpose"),
    ("weights-not-loaded", {"unloaded": UNLOADED | {"files": [{"file": "a.pt", "keys": 62}]}}, "something else"),
]  # fmt: skip
PASS = {
    "Adam's square root": {"learning_rate": SMALL | {"used": 0.2, "optimizer": "AdamW"}},
    "one group of several": {"learning_rate": RATE | {"used": 1.0, "groups": [0.1, 1.0]}},
    "a larger checkpoint with a new head": {"loads": [[LOAD | {"keys": 200, "unexpected": 142, "missing": 2}]]},
    "as many passes as ranks, divided by their number": {"gradient": GRADIENT | {"over_mean": 0.5, "passes": 2}},
    "clipped to a half by chance": {"gradient": GRADIENT | {"over_mean": 0.5, "steady": False}},
    "one that stood still in a short training": {
        "parameters": PARAMETERS | {"unchanged": ["x"], "idle": ["x"], "steps": 2}
    },
    "evaluation on shares of different lengths": {
        "forwards": {"trains": [9, 9], "evaluates": [3, 4], "buffers": [False, False]}
    },
    "evaluation on rank 0 alone without buffers to broadcast": {
        "forwards": {"trains": [9, 9], "evaluates": [3, 0], "buffers": [False, False]}
    },
    "one process and no launcher": {"group": {"joined": False, "launched": None}},
    "an optimizer's state on one rank": {"restored": APART_AT_ONCE | {"sent": [True, False, False]}},
    "a state on every rank, and weights of its own on each": {"restored": APART_AT_ONCE | {"weights": ["a", "b", "c"]}},
    "a short wait": {"loader": {"wait_share": [0.9], "wait_s": [0.001], "workers": 0}},
    "batches of any length": {"steps": STEPS | {"images": [None, 8]}},
    "own sets, a part of each": {"data": epochs(draws=60, never=40)["data"] | {"sampler": WATCHED, "own_sets": True}},
    "a bound exchanges nothing": {"exchanges": False, "start": {"parameters": ["a", "b"]}, "norm": NORM},
    "buffers that differ by rank": {"end": {"parameters": ["c", "c"], "buffers": ["d", "e"]}},
    "padding": epochs(draws=101, repeated=1, most=2),
    "other images dropped each epoch": epochs(never=4),
    "by chance one image twice": {"data": DATA | epochs(never=4)["data"] | {"never_seen": 1}},
    "ten images keep their neighbours": {"data": {"num_images": 10, "global_batch": 2, "same_neighbours": 0.5}},
    "a metric in other digits": {"reported": {"loss": [[0.1 + 0.2, None], [0.3, None]]}},
    "some images unreadable": {"reported": {"top1": [[0.5], [0.5]], "images": [[30], [30]], "val_images": 36}},
    "one rank outside": {"hang": {"limit_s": 20, "where": [PLACE, OTHER | {"collective": False}]}},
    "all in backward passes": {"hang": {"limit_s": 20, "where": [p | {"collective": None} for p in (PLACE, OTHER)]}},
    "all at one line": {"hang": {"limit_s": 20, "where": [PLACE, PLACE]}},
    "one rank unknown": {"hang": {"limit_s": 20, "where": [PLACE, None]}},
    "Adasum is no mean": {
        "gradient": {"over_mean": 1.7, "same_on_all_ranks": False, "exchanged": False, "kind": "Adasum"}
    },
    "clipped": {"gradient": {"over_mean": 0.7, "same_on_all_ranks": True, "kind": "mean"}},
    "a backbone into a larger model": {"loads": [[LOAD | {"missing": 200}]]},
    "a part of a larger file": {"loads": [[LOAD | {"unexpected": 50}]]},
    "only steps": {"trains": False, "norm": NORM},
    "synchronised": {"norm": NORM | {"synchronised": True}},
    "group norm": {"norm": NORM | {"kind": "GroupNorm × 20"}},
    "one device": {"num_devices": 1, "norm": NORM},
    "a loss of all ranks": {"reported": {"loss": [[0.6, 0.5]] * 2, "images": [[128, 128]] * 2}},
    "half the loss in one epoch": {"reported": {"loss": [[0.3, 0.5]] * 2} | SAID},
    "half the loss, of a validation": {
        "reported": {
            "val_loss": [[0.3, 0.25]] * 2,
            "loss": [[0.3, 0.25]] * 2,
            "images": [[36, 36]] * 2,
            "val_images": 36,
        }
    },
    "a loss of accumulated passes": {
        "reported": {"loss": [[1.2, 1.0]] * 2},
        "trained": TRAINED | {"loss": [[None, None]] * 2, "by_examples": [[None, None]] * 2},
    },
    "a validation shared out": {"validations": [{"draws": 21, "examples": 21, "shared": 0}], "reported": {}},
    "a validation put together once": {
        "reported": {},
        "validations": SHARED_OUT,
        "validated": {"times": 2, "silent": 1},
    },
    "a validation of the whole set on each rank": {
        "reported": {},
        "validations": [SHARED_OUT[0] | {"shared_out": False}],
        "validated": {"times": 2, "silent": 2},
    },
    "padding that was dropped": {"validations": [{"draws": 37, "examples": 36, "shared": 1}]},
    "targets of batches of another length": {"targets": None, "steps": STEPS},
    "a schedule for epochs": {"schedules": [CURVE | {"schedulers": [SCHEDULER | {"length": 10, "taken": 10}]}]},
    "milestones, long after the last": {
        "schedules": [CURVE | {"schedulers": [SCHEDULER | {"kind": "MultiStepLR", "length": 20, "ends": False}]}]
    },
    "all at one batch": {"hang": {"limit_s": 20, "where": [STUCK[1]] * 2}},
    "one in its loader, and one that computes": {
        "hang": {"limit_s": 20, "where": [STUCK[1], PLACE | {"collective": False}]}
    },
}


def names(observed: dict) -> list[str]:
    """Whose detectors find something."""
    return [finding.name for finding in mistakes.find(observed)]


@pytest.mark.parametrize(("name", "change", "said"), WRONG, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(WRONG)])
def test_a_mistake_is_found_and_nothing_else(name, change, said):
    finding = DETECTED[name].find(RIGHT | change)
    assert mistakes.find(RIGHT | change) == [finding]
    assert finding.name == name and said in finding.evidence
    assert finding.title and finding.consequence and finding.remedy
    assert names(change | {"trains": True, "num_devices": 2, "world_size": 2}) == [name]  # with nothing else observed


@pytest.mark.parametrize("change", [{}, *PASS.values()], ids=["right", *PASS])
def test_what_is_right_is_let_pass(change):
    assert names(RIGHT | change) == []


@pytest.mark.parametrize(("name", "change", "asked"), ASKED, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(ASKED)])
def test_what_only_its_author_can_tell_is_a_question(name, change, asked):
    (finding,) = mistakes.find(RIGHT | change)
    assert finding.name == name and asked in finding.question
    assert any(line.strip().startswith("by design?") for line in finding.lines())


def test_what_follows_from_a_mistake_is_not_said_beside_it():
    apart = {"end": {"parameters": ["a", "b"]}, "weights": APART, "others": {"ema": ["a", "b"]}}
    assert names(RIGHT | apart) == ["drift"]
    assert names(RIGHT | apart | {"gradient": GRADIENT | {"exchanged": False}}) == ["no-exchange"]
    assert names(RIGHT | apart | {"rates": {"looked_at": 9, "apart_at": 1, "by_rank": [1, 2]}}) == ["lr-by-rank"]


@pytest.mark.parametrize(("name", "change", "sampler", "asks"), ASKED_OF_DATA)
def test_what_only_its_author_knows_is_asked(name, change, sampler, asks):
    [finding] = mistakes.find(RIGHT | {"data": change["data"] | {"sampler": WATCHED | sampler}})
    assert finding.name == name and asks in finding.question
    assert not any(found.question for found in mistakes.find(RIGHT | change))  # a run of this bench means none of it


def test_every_mistake_has_a_detector_and_a_case_here():
    assert {name for name, _, _ in WRONG} == set(DETECTED) == {mistake.name for mistake in DETECTED.values()}
    assert set(INJECTED) < set(MISTAKES) < set(DETECTED)
    watched = {name for name, mistake in DETECTED.items() if mistake.watched}
    assert (
        set(DETECTED) - set(MISTAKES) == {"loader-starvation", "drift", "loader-stuck"} | watched
    )  # nothing injects them
    assert mistakes.find({}) == []
    # A run that ended well cannot show the first two, and a record never shows the others.
    of_a_hang = {"rank0-collective", "loader-stuck"}
    assert set(mistakes.unobserved({})) == set(DETECTED) - of_a_hang - watched
    assert set(mistakes.unheard({}, {})) == set(DETECTED) - of_a_hang
    assert mistakes.unheard(RIGHT, {}) == {} and mistakes.unheard({}, {"loads": "why"})["strict-false"] == "why"
    assert mistakes.unobserved(RIGHT) == []


def test_what_was_not_observed_is_not_found_and_is_said():
    parts = {name: [part.split()[0] for part in mistake.needs.split("|") if part] for name, mistake in DETECTED.items()}
    alone = {name: change for name, change, _ in WRONG if parts[name][:1] == list(change)}
    assert len(alone) == len(DETECTED) - 2  # a run that hangs is seen by its end alone
    for name, change in alone.items():
        seen = {key: value for key, value in RIGHT.items() if key not in parts[name]}
        assert DETECTED[name].find(seen | change) and name not in mistakes.unheard(seen | change, {})
        assert DETECTED[name].find(seen) is None and name in mistakes.unheard(seen, {})


def test_a_finding_is_said_in_lines():
    lines = Finding("a-name", "a title", "what shows it", "what comes of it", "what to do").lines()
    assert lines[0] == "a-name: a title" and len(lines) == 4
    assert [line.split(":")[1].strip() for line in lines[1:]] == ["what shows it", "what comes of it", "what to do"]


def test_a_mistake_is_made_by_its_own_switch_and_says_so():
    for name, mistake in MISTAKES.items():
        assert mistake.wrong == ({"mistake": name} if name in INJECTED else mistake.switch) and mistake.wrong
        assert name in mistake.warning and mistake.title in mistake.warning


def test_the_committed_records_have_no_finding_but_what_was_done_on_purpose():
    committed, refused = check.records_at(ROOT / "results" / "reference")
    assert not refused and len(committed) > 100
    for record in committed:
        config, expected = record.config, []
        if config.label.variant == "wrong":
            expected = [name for name in DETECTED if config.label.program == f"wrong: {name}"]
            assert expected, record.run_id
        elif not config.init_sync:
            expected = ["unsynced-init"]
        elif config.label.variant == "unfair":
            waits = config.item_sync or config.step_barrier
            slow = config.storage_ms and config.workers < config.num_devices
            expected = ["host-sync"] * waits + ["loader-starvation"] * bool(slow)
        assert names(record.observed) == expected, record.run_id


def write(folder, name: str, record, **other):
    """A record in a folder of its own. other: of its parts."""
    (folder / name).mkdir(parents=True)
    (folder / name / "record.json").write_text(json.dumps(record.data | other))


def test_check_says_what_it_found_and_what_it_could_not_look_for(tmp_path, capsys):
    write(tmp_path, "right", records.record())
    assert cli.main(["mistake", "check", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 record: no finding" in out and "not observed in 1: " in out and "gradient-sum" in out
    write(tmp_path, "wrong", records.record(seconds=60), observed={"writers": {"best.pt": [0, 1]}})
    assert cli.main(["mistake", "check", str(tmp_path)]) == ExitCode.FOUND
    out = capsys.readouterr().out
    for text in ("wrong/record.json", "many-writers", "best.pt by ranks 0, 1", MISTAKES["many-writers"].remedy):
        assert text in out
    assert cli.main(["mistake", "check", str(tmp_path / "wrong" / "record.json")]) == ExitCode.FOUND


def test_a_hang_is_read_from_the_record_of_a_run_that_failed(tmp_path, capsys):
    record = records.record(failed="hung")
    write(tmp_path, "hung", record, failure=record["failure"] | {"where": [PLACE, OTHER]})
    assert cli.main(["mistake", "check", str(tmp_path)]) == ExitCode.FOUND
    assert "rank0-collective" in capsys.readouterr().out


def test_what_cannot_be_read_is_exit_code_2(tmp_path, capsys):
    assert cli.main(["mistake", "check", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "record.json").write_text("{")
    assert cli.main(["mistake", "check", str(tmp_path)]) == ExitCode.REFUSED
    assert cli.main(["mistake", "check", str(tmp_path / "record.json")]) == ExitCode.REFUSED
    assert "not a readable record" in capsys.readouterr().err


def test_a_wait_for_data_beside_other_processes_is_a_possible_mistake():
    waits = {"loader": {"wait_share": [0.1, 0.4], "workers": 1}}
    busy = waits | {"disturbed": "other processes took 86 % of the CPU"}
    questions = [DETECTED["loader-starvation"].find(observed).question for observed in (waits, busy)]
    assert questions[0] == "" and questions[1]
