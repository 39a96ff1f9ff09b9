"""bench/mistakes: each detector on what it must find and on what it must let pass; `bench mistake check` on records."""

import pytest

from bench import __main__ as cli
from bench import mistakes
from bench.cli.actions import check_records as check
from bench.errors import ExitCode
from bench.mistakes import DETECTED, INJECTED, MISTAKES
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
LONG, MILESTONES = SCHEDULER | {"length": 160}, SCHEDULER | {"kind": "MultiStepLR", "length": 20, "ends": False}
CURVE = {"steps": 80, "peak": 0.1, "last": 0.001, "zeros": 1, "trend": None, "schedulers": [SCHEDULER]}
MIB = 2**20
MEMORY = {"place": ["host"] * 2, "steps": [[30, 90]] * 2, "bytes": [[900 * MIB, 905 * MIB], [900 * MIB, 990 * MIB]],
          "steadily": [True, False]}  # fmt: skip
CONTEXTS = {"own": [[0], [1]], "extra": [[], []], "current": [0, 1], "loaded": [[], []], "together": []}
EXTRA = CONTEXTS | {"extra": [[], [0]]}
TRAINED = {"loss": [[0.7, 0.6], [0.5, 0.4]], "by_examples": [[0.7, 0.6], [0.5, 0.4]], "examples": [[64, 64]] * 2}
ACCUMULATED = TRAINED | {"loss": [[None, None]] * 2, "by_examples": [[None, None]] * 2}
APART_CONTENTS = {"apart": {"file": "best.pt", "step": 32, "by_rank": [0, 1, None, 1]}}
VALIDATED = {"validations": 2, "in_training_mode": 0, "layers": {}}
IN_TRAINING = VALIDATED | {"in_training_mode": 2, "layers": {"BatchNorm2d": 20}}
UNLOADED = {"files": [], "assigned": ""}
SHARED_OUT = [{"draws": 36, "examples": 36, "shared": 0, "shared_out": True}]
OF_ALL = [SHARED_OUT[0] | {"shared_out": False}]
ONCE_SILENT, TWICE_SILENT = ({"times": 2, "silent": times} for times in (1, 2))
STUCK = [PLACE, OTHER | {"collective": False, "awaits_batch": True}, PLACE | {"collective": None}]
RIGHT = {
    "world_size": 2, "num_devices": 2, "exchanges": True, "trains": True,
    "start": {"parameters": ["a", "a"], "buffers": ["b", "b"]},
    "end": {"parameters": ["c", "c"], "buffers": ["d", "e"]},
    "data": DATA, "reported": {"top1": [[0.5, 0.6], [0.5, 0.6]], "images": [[36, 36], [36, 36]], "val_images": 36},
    "writers": {"record.json": [0], "rank1.log": [1]},
    "learning_rate": RATE,
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


def hang(*where) -> dict:
    """A run that hangs, its ranks at these places."""
    return {"hang": {"limit_s": 20, "where": list(where)}}


# The mistake, what was observed instead of RIGHT, and the values that its evidence must contain.
WRONG = [
    ("unsynced-init", {"start": {"parameters": ["a", "b"]}}, "2"),
    ("unsynced-init", {"start": {"parameters": ["a", "b"]}, "weights": APART_OUTSIDE}, OUTSIDE),
    ("drift", {"end": {"parameters": ["a", "b"]}}, "end"),
    ("drift", {"end": {"parameters": ["a", "b"]}, "weights": APART}, "step 2|fc.weight"),
    ("whole-data", epochs(draws=200, repeated=100, most=2), "200|100"),
    ("whole-data", epochs(never=25, repeated=36, most=2), "36"),
    ("whole-data", {"data": {"shared_in_a_step": 0.5}}, "50.0 %"),
    ("no-reshuffle", {"data": DATA | {"same_neighbours": 0.97}}, "97.0 %"),
    ("rank-metrics", {"reported": {"top1": [[0.5], [0.6]]}}, "top1|0.5, 0.6"),
    ("rank-metrics", {"reported": {"top1": [[0.5, 0.7], [0.6, 0.7]]}}, "top1|0.5, 0.6|epoch 1"),
    ("rank-metrics", {"reported": {"top1": [[0.5], [0.5]], "images": [[18], [18]], "val_images": 36}}, "18|36"),
    ("many-writers", {"writers": {"best.pt": [0, 1]}}, "best.pt|0, 1"),
    ("rank0-collective", hang(PLACE, OTHER), "epochs.py:275|validate"),
    ("rank0-collective", hang(PLACE, OTHER | {"collective": None}), "end_epoch"),
    ("lr-not-scaled", {"learning_rate": RATE | {"used": 0.05}}, "0.05"),
    ("lr-not-scaled", {"learning_rate": SMALL | {"used": 0.1}}, "64|0.4"),
    ("same-augmentation", {"augmentation": {"streams": ["a", "a"]}}, "1"),
    ("same-augmentation", {"augmentation": {"streams": ["a", "b"], "again": ["numpy"]}}, "numpy"),
    ("gradient-sum", {"gradient": {"over_mean": 2.0, "same_on_all_ranks": True, "kind": "mean"}}, "2.000|sum"),
    ("gradient-sum", {"gradient": {"over_mean": 0.5, "same_on_all_ranks": True, "kind": "mean"}}, "0.500|twice"),
    ("strict-false", {"loads": [[LOAD | {"missing": 62, "unexpected": 62, "prefix": "module."}]]}, "0 of 62"),
    ("strict-false", {"loads": [[LOAD | {"missing": 60, "unexpected": 60}]]}, "2 of 62"),
    ("strict-false", {"loads": [[LOAD | {"missing": 62, "unexpected": 62, "picked": True}]]}, ""),
    ("local-norm", {"norm": NORM}, "BatchNorm2d × 20|4"),
    ("host-sync", {"host_syncs": [{"where": "train.py:9 item", "per_step": 1.0}]}, "train.py:9"),
    ("lost-remainder", {"data": DATA | epochs(never=6)["data"] | {"never_seen": 6}}, "6 of 100"),
    ("lost-remainder", epochs(never=16), "16 of 100"),
    ("no-exchange", {"gradient": GRADIENT | {"exchanged": False}}, ""),
    ("no-exchange", {"gradient": GRADIENT | {"own": [OUTSIDE]}}, OUTSIDE),
    ("no-group", {"group": {"joined": False, "launched": LAUNCHED}}, "WORLD_SIZE|2"),
    ("forgotten-parameters", {"parameters": PARAMETERS | {"forgotten": ["fc.bias"], "missing": 1}}, "fc.bias"),
    ("forgotten-parameters", {"zero_grad": ZEROED | {"lost": 4}}, "4"),
    ("forgotten-parameters", {"parameters": PARAMETERS | {"unchanged": list("abcdefghij"), "idle": ["a"]}}, "10"),
    ("no-zero-grad", {"zero_grad": ZEROED | {"kept": ["fc.weight"]}}, "fc.weight"),
    ("weights-not-loaded", {"unloaded": UNLOADED | {"assigned": "ResNet"}}, "ResNet.state_dict"),
    ("no-eval", {"eval_mode": IN_TRAINING}, "2 of 2|BatchNorm2d × 20"),
    ("unsynced-buffers", {"evaluation": EVALUATED | {"apart_at": 9, "buffers": ["bn.mean"], "ranks": 2}}, "bn.mean"),
    ("stale-optimizer", {"parameters": PARAMETERS | {"stale": 2, "missing": 2}}, "2"),
    ("lr-by-rank", {"rates": {"looked_at": 9, "apart_at": 4, "by_rank": [0.1, 0.05]}}, "step 4"),
    ("unsynced-accumulation", {"passes": {"steps": 9, "unsynced": 8}}, "8|9"),
    ("rank0-forward", {"forwards": RIGHT["forwards"] | {"evaluates": [3, 0]}}, "3, 0"),
    ("counted-twice", {"reported": RIGHT["reported"] | {"images": [[37, 37]] * 2}}, "37|36"),
    ("other-replica", {"others": {"ema": ["a", "b"]}}, "ema"),
    ("loader-starvation", {"loader": {"wait_share": [0.1, 0.4], "workers": 1}}, "40 %"),
    ("loader-starvation", {"loader": {"wait_share": [0.1, 0.4], "wait_s": [0.1, 0.1], "workers": 1}}, "40 %"),
    ("same-random", {"random": {"streams": ["0", "0"], "generators": ["torch"]}}, "torch"),
    ("uneven-steps", {"steps": STEPS | {"batches": [[9, 9], [9, 8]]}}, "epoch 2|9, 8"),
    ("uneven-steps", {"steps": STEPS | {"images": [8, 4]}}, "8, 4"),
    ("hidden-step", {"restored": APART_AT_ONCE | {"moved": [False, True, True]}}, "1, 2"),
    ("hidden-step", {"restored": APART_AT_ONCE}, ""),
    ("schedule-length", {"schedules": [CURVE | {"last": 0.08, "schedulers": [LONG]}]}, "160|80|80 %"),
    ("schedule-length", {"schedules": [CURVE, CURVE | {"zeros": 40}]}, "40 of 80"),
    ("schedule-length", {"schedules": [CURVE | {"trend": "falls"}]}, "1 %"),
    ("uneven-targets", {"targets": {"steps": 16, "counts": [40.0, 57.0], "ratio": 1.4, "most": 3.2}}, "40, 57"),
    ("memory-growth", {"memory": MEMORY | {"steadily": [True, True]}}, "1.5 MiB|900 MiB"),
    ("load-by-rank", {"contents": APART_CONTENTS}, "best.pt|32|1, 3"),
    ("load-by-rank", {"contents": APART_CONTENTS, "end": {"parameters": ["a", "b"]}, "weights": APART}, "step 2"),
    ("loader-stuck", hang(*STUCK), "rank 1|epochs.py:150"),
    ("extra-context", {"contexts": EXTRA | {"loaded": [[], [0]]}}, "cuda:0|torch.load"),
    ("extra-context", {"contexts": EXTRA | {"current": [0, 0]}}, "cuda:1|cuda:0"),
    ("extra-context", {"contexts": CONTEXTS | {"own": [[0], [0]], "together": [0, 1]}}, "0, 1"),
]
SAID = {"images": [[64, 64]] * 2}  # of the training
WATCHED = {"kind": "Own", "shuffles": False, "set_epoch": False, "replacement": False, "repeats": False, "epochs": []}
APART_IN_TIME = {"weights": APART | {"together_again": True}}
LOCAL_SGD = GRADIENT | {"exchanged": False, "kind": "local SGD"}
# What may be intended: one question to the author.
ASKED = [
    ("host-sync", {"host_syncs": [{"where": "train.py:9 item", "per_step": 1.0}], "device": "cpu"}),
    ("no-exchange", {"gradient": GRADIENT | {"own": [OUTSIDE], "gathers": True}}),
    ("no-exchange", {"gradient": LOCAL_SGD}),
    ("drift", APART_IN_TIME),
    ("uneven-steps", {"steps": STEPS | {"batches": [[9], [8]], "joined": True}}),
    ("uneven-steps", {"steps": STEPS | {"batches": [[9], [8]], "wrapped": False}}),
    ("unsynced-accumulation", {"passes": {"steps": 9, "unsynced": 6}, "gradient": GRADIENT | {"kind": "local SGD"}}),
    ("lr-not-scaled", {"learning_rate": SMALL | {"used": 0.2}}),  # by the square root
    ("forgotten-parameters", {"parameters": PARAMETERS | {"forgotten": ["conv.weight"], "head_alone": True}}),
    ("forgotten-parameters", {"parameters": PARAMETERS | {"unchanged": ["x"], "idle": ["x"]}}),
    ("load-by-rank", {"contents": APART_CONTENTS}),
    ("counted-twice", {"validations": [{"draws": 22, "examples": 21, "shared": 1}], "reported": {}}),
    ("rank-metrics", {"reported": {"loss": [[0.3, 0.25]] * 2} | SAID}),
    ("rank-metrics", {"reported": {"train_loss": [[1.2, 1.0]] * 2}}),
    ("rank-metrics", {"reported": {"loss": [[0.6, 0.5]] * 2, "images": [[256, 256]] * 2}}),
    ("rank-metrics", {"reported": {}, "validations": SHARED_OUT, "validated": TWICE_SILENT}),
    ("no-eval", {"eval_mode": IN_TRAINING}),
    ("weights-not-loaded", {"unloaded": UNLOADED | {"files": [{"file": "a.pt", "keys": 62}]}}),
    ("loader-starvation", {"loader": {"wait_share": [0.4], "workers": 1}, "disturbed": "other processes: 86 %"}),
]
# The same of data: a question to the author of a script, whose sampler this is, and no question to a run of this bench.
ASKED_OF_DATA = [
    ("whole-data", epochs(repeated=36, most=3, by_one_rank=30), {}),
    ("whole-data", {"data": {"shared_in_a_step": 0.1}}, {"replacement": True}),
    ("no-reshuffle", {"data": DATA | {"same_neighbours": 1.0}}, {}),
    ("no-reshuffle", {"data": DATA | {"same_neighbours": 0.9}}, {"shuffles": True}),
    ("lost-remainder", {"data": epochs(never=40)["data"] | {"never_seen": 40}}, {}),
    ("lost-remainder", epochs(draws=60, never=40), {}),
]
PASS = {
    "Adam's square root": {"learning_rate": SMALL | {"used": 0.2, "optimizer": "AdamW"}},
    "one group of several": {"learning_rate": RATE | {"used": 1.0, "groups": [0.1, 1.0]}},
    "a larger checkpoint with a new head": {"loads": [[LOAD | {"keys": 200, "unexpected": 142, "missing": 2}]]},
    "a backbone into a larger model": {"loads": [[LOAD | {"missing": 200}]]},
    "a part of a larger file": {"loads": [[LOAD | {"unexpected": 50}]]},
    "as many passes as ranks, divided by their number": {"gradient": GRADIENT | {"over_mean": 0.5, "passes": 2}},
    "clipped": {"gradient": {"over_mean": 0.7, "same_on_all_ranks": True, "kind": "mean"}},
    "clipped to a half by chance": {"gradient": GRADIENT | {"over_mean": 0.5, "steady": False}},
    "Adasum is no mean": {"gradient": LOCAL_SGD | {"over_mean": 1.7, "same_on_all_ranks": False, "kind": "Adasum"}},
    "idle in a short training": {"parameters": PARAMETERS | {"unchanged": ["x"], "idle": ["x"], "steps": 2}},
    "evaluation on rank 0 alone": {"forwards": RIGHT["forwards"] | {"evaluates": [3, 0], "buffers": [False] * 2}},
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
    "a loss of all ranks": {"reported": {"loss": [[0.6, 0.5]] * 2, "images": [[128, 128]] * 2}},
    "half the loss in one epoch": {"reported": {"loss": [[0.3, 0.5]] * 2} | SAID},
    "half the loss, of a validation": {"reported": RIGHT["reported"] | {"loss": [[0.3, 0.25]] * 2}},
    "a loss of accumulated passes": {"reported": {"loss": [[1.2, 1.0]] * 2}, "trained": ACCUMULATED},
    "a validation shared out": {"validations": [{"draws": 21, "examples": 21, "shared": 0}], "reported": {}},
    "a validation put together once": {"reported": {}, "validations": SHARED_OUT, "validated": ONCE_SILENT},
    "a validation of all on each rank": {"reported": {}, "validations": OF_ALL, "validated": TWICE_SILENT},
    "padding that was dropped": {"validations": [{"draws": 37, "examples": 36, "shared": 1}]},
    "one rank outside": hang(PLACE, OTHER | {"collective": False}),
    "all in backward passes": hang(PLACE | {"collective": None}, OTHER | {"collective": None}),
    "all at one line": hang(PLACE, PLACE),
    "one rank unknown": hang(PLACE, None),
    "all at one batch": hang(STUCK[1], STUCK[1]),
    "one in its loader, and one that computes": hang(STUCK[1], PLACE | {"collective": False}),
    "only steps": {"trains": False, "norm": NORM},
    "synchronised": {"norm": NORM | {"synchronised": True}},
    "group norm": {"norm": NORM | {"kind": "GroupNorm × 20"}},
    "one device": {"num_devices": 1, "norm": NORM},
    "a schedule for epochs": {"schedules": [CURVE | {"schedulers": [SCHEDULER | {"length": 10, "taken": 10}]}]},
    "milestones, long after the last": {"schedules": [CURVE | {"schedulers": [MILESTONES]}]},
}


def names(observed: dict) -> list[str]:
    """Whose detectors find something."""
    return [finding.name for finding in mistakes.find(observed)]


@pytest.mark.parametrize(("name", "change", "values"), WRONG, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(WRONG)])
def test_a_mistake_is_found_and_nothing_else(name, change, values):
    finding = DETECTED[name].find(RIGHT | change)
    assert mistakes.find(RIGHT | change) == [finding]
    assert finding.name == name and all(value in finding.evidence for value in values.split("|"))
    assert finding.title and finding.consequence and finding.remedy
    assert names(change | {"trains": True, "num_devices": 2, "world_size": 2}) == [name]  # with nothing else observed


@pytest.mark.parametrize("change", [{}, *PASS.values()], ids=["right", *PASS])
def test_what_is_right_is_let_pass(change):
    assert names(RIGHT | change) == []


@pytest.mark.parametrize(("name", "change"), ASKED, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ASKED)])
def test_what_only_its_author_can_tell_is_a_question(name, change):
    (finding,) = mistakes.find(RIGHT | change)
    assert finding.name == name and finding.question
    assert [finding.question in line for line in finding.lines()].count(True) == 1


@pytest.mark.parametrize(("name", "change", "sampler"), ASKED_OF_DATA)
def test_what_a_sampler_may_mean_is_a_question(name, change, sampler):
    (finding,) = mistakes.find(RIGHT | {"data": change["data"] | {"sampler": WATCHED | sampler}})
    assert finding.name == name and finding.question
    assert not any(found.question for found in mistakes.find(RIGHT | change))


def test_what_follows_from_a_mistake_is_not_said_beside_it():
    apart = {"end": {"parameters": ["a", "b"]}, "weights": APART, "others": {"ema": ["a", "b"]}}
    assert names(RIGHT | apart) == ["drift"]
    assert names(RIGHT | apart | {"gradient": GRADIENT | {"exchanged": False}}) == ["no-exchange"]
    assert names(RIGHT | apart | {"rates": {"looked_at": 9, "apart_at": 1, "by_rank": [1, 2]}}) == ["lr-by-rank"]


def test_every_mistake_has_a_detector_and_a_case_here():
    assert {name for name, _, _ in WRONG} == set(DETECTED) == {mistake.name for mistake in DETECTED.values()}
    assert set(INJECTED) < set(MISTAKES) < set(DETECTED)
    assert mistakes.find({}) == [] and mistakes.unobserved(RIGHT) == []
    # A run that ended well cannot show the first two, and a record never shows those that a Watch alone sees.
    watched = {name for name, mistake in DETECTED.items() if mistake.watched}
    of_a_hang = {"rank0-collective", "loader-stuck"}
    assert set(mistakes.unobserved({})) == set(DETECTED) - of_a_hang - watched
    assert set(mistakes.unobserved_reasons({}, {})) == set(DETECTED) - of_a_hang
    assert mistakes.unobserved_reasons(RIGHT, {}) == {}
    assert mistakes.unobserved_reasons({}, {"loads": "why"})["strict-false"] == "why"


def test_what_was_not_observed_is_not_found_and_is_said():
    parts = {name: [part.split()[0] for part in mistake.needs.split("|") if part] for name, mistake in DETECTED.items()}
    alone = {name: change for name, change, _ in WRONG if parts[name][:1] == list(change)}
    assert len(alone) == len(DETECTED) - 2  # a run that hangs is seen by its end alone
    for name, change in alone.items():
        seen = {key: value for key, value in RIGHT.items() if key not in parts[name]}
        assert DETECTED[name].find(seen | change) and name not in mistakes.unobserved_reasons(seen | change, {})
        assert DETECTED[name].find(seen) is None and name in mistakes.unobserved_reasons(seen, {})


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


def test_check_says_what_it_found_and_what_it_could_not_look_for(tmp_path, capsys):
    records.store(tmp_path, [records.record()])
    assert cli.main(["mistake", "check", str(tmp_path)]) == ExitCode.DONE
    assert "gradient-sum" in capsys.readouterr().out  # not observed
    written = {"observed": {"writers": {"best.pt": [0, 1]}}}
    records.store(tmp_path / "wrong", records.edited([records.record(seconds=60)], lambda data: data.update(written)))
    for path in (tmp_path, *(tmp_path / "wrong").glob("*/record.json")):
        assert cli.main(["mistake", "check", str(path)]) == ExitCode.FOUND
        out = capsys.readouterr().out
        assert all(text in out for text in ("many-writers", "best.pt", MISTAKES["many-writers"].remedy))


def test_a_hang_is_read_from_the_record_of_a_run_that_failed(tmp_path, capsys):
    where = {"where": [PLACE, OTHER]}
    records.store(tmp_path, records.edited([records.record(failed="hung")], lambda data: data["failure"].update(where)))
    assert cli.main(["mistake", "check", str(tmp_path)]) == ExitCode.FOUND
    assert "rank0-collective" in capsys.readouterr().out


def test_what_cannot_be_read_is_refused(tmp_path, capsys):
    (tmp_path / "record.json").write_text("{")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "record.json"):
        assert cli.main(["mistake", "check", str(path)]) == ExitCode.REFUSED
        assert str(path) in capsys.readouterr().err
