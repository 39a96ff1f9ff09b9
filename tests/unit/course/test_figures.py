"""The interactive figures' numbers, held to the Python formulas, to torch and to the committed records."""

import itertools
import json
import statistics
from types import SimpleNamespace

import pytest

from bench import formulas
from bench.course import records
from bench.course.figures import FIGURES, FOLDER, scripts
from bench.files import PROJECT
from bench.predict.step.engines import Message, buckets_of, message_times
from tests.browser.scripts import STATES_OF, evaluate, needs_javascript, still_pictures

pytestmark = needs_javascript


@pytest.fixture
def ask(tmp_path):
    return lambda expression, name="memory": evaluate(
        scripts(), f"(F => {expression})(Figure.all.{name}.functions)", tmp_path
    )


def test_every_script_is_a_figure_with_its_still_picture(tmp_path):
    assert {path.stem for path in FOLDER.glob("*.js")} == {"figure", *FIGURES} and len(FIGURES) == 6
    stale = [path.name for path, text in still_pictures(tmp_path) if path.read_text() != text]
    assert stale == [], "`python -m tests.validation.renew` draws them"


def test_all_inputs_at_their_ends_give_pictures_without_a_hole(tmp_path):
    """Every preset, and every control at its smallest and largest value, at a phone's width."""
    found = evaluate(scripts(), f"""Object.entries(Figure.all).flatMap(([name, figure]) =>
      {STATES_OF}(figure).map(state => {{
        const result = figure.compute(state);
        return [name, JSON.stringify(state), figure.draw(result, state, 320) + figure.say(result, state).join(" ")];
      }}))""", tmp_path)  # fmt: skip
    assert len(found) > 100
    assert not [(name, state) for name, state, drawn in found if "NaN" in drawn or "undefined" in drawn]


def test_the_formulas_are_those_of_python(tmp_path):
    sizes, ranks, links = (1e3, 46.8e6), (2, 4, 7, 64), ((1e-5, 8e-10), (1e-3, 1e-7))
    cases = list(itertools.product(sizes, ranks, links))
    asked = f"""{json.dumps(cases)}.map(([s, n, [alpha, beta]]) => [
      Figure.formulas.ring_all_reduce_s(s, n, alpha, beta), Figure.formulas.tree_broadcast_s(s, n, alpha, beta),
      Figure.formulas.bus_bandwidth(s, 0.5, n), Figure.formulas.scaling_efficiency(s, 3, n),
      Figure.formulas.exposed_comm_s(s, 3),
      Figure.formulas.received_bytes(s, n, {{ all_reduces: 1, gathers: 2, scatters: 3 }})])"""
    wanted = [
        [formulas.ring_all_reduce_s(s, n, *link), formulas.tree_broadcast_s(s, n, *link),
         formulas.bus_bandwidth(s, 0.5, n), formulas.scaling_efficiency(s, 3, n), formulas.exposed_comm_s(s, 3),
         formulas.received_bytes(s, n, 1, 2, 3)]
        for s, n, link in cases
    ]  # fmt: skip
    for got, right in zip(evaluate(scripts(), asked, tmp_path), wanted, strict=True):
        assert got == pytest.approx(right, rel=1e-12)


STATE = {"size": 9, "ranks": 4, "optimizer": "adam", "precision": "fp32", "stage": "0", "group": "0", "view": True,
         "batch": 1, "sequence": 1024, "width": 1536, "layers": 48, "every": 0}  # fmt: skip
SHARDS = [(), ("optimizer state",), ("optimizer state", "gradients"), ("optimizer state", "gradients", "weights")]


def test_bytes_held_are_those_of_the_formula_for_every_stage(ask):
    cases = list(itertools.product([("adam", 2), ("momentum", 1), ("sgd", 0)], range(4)))
    states = [STATE | {"stage": str(stage), "optimizer": name} for (name, _), stage in cases]
    found = ask(f"{json.dumps(states)}.map(F.heldPerParameter)")
    for ((_, numbers), stage), held in zip(cases, found, strict=True):
        right = formulas.sharded_bytes(10**9, 4, SHARDS[stage], numbers)
        assert {kind: held[kind] * 1e9 for kind in right} == pytest.approx(right)


def test_mixed_precision_and_groups_are_those_of_zero(ask):
    """2 P + 2 P + 12 P, of which a stage divides the last, the last two, all; a group of HSDP divides by its size."""
    mixed = STATE | {"precision": "mixed", "ranks": 8}
    states = [mixed | {"stage": str(stage)} for stage in range(4)] + [mixed | {"stage": "3", "group": "2"}]
    *found, copy = ask(f"{json.dumps([*states, STATE | {'view': False}])}.map(F.heldPerParameter)")
    totals = [each["weights"] + each["gradients"] + each["optimizer state"] for each in found]
    assert totals == [16, 4 + 12 / 8, 2 + 14 / 8, 16 / 8, 16 / 2]
    assert copy["buckets"] == 4 and all(each["buckets"] == 0 for each in found)


def test_bytes_received_are_those_of_the_formula(ask):
    states = [STATE | {"stage": str(stage)} for stage in range(4)] + [STATE | {"stage": "3", "ranks": 8, "group": "4"}]
    found = ask(f"{json.dumps(states)}.map(state => F.sent(state, 1e9))")
    kinds = [{"all_reduces": 1}, *[{"gathers": 1, "scatters": 1}] * 2, {"gathers": 2, "scatters": 1}]
    right = [formulas.received_bytes(4e9, 4, **kind) for kind in kinds]
    assert found == pytest.approx([*right, right[-1] + formulas.received_bytes(1e9, 2, all_reduces=1)])


def test_the_largest_model_fills_the_memory(ask):
    changes = ({}, {"stage": "3", "every": 2}, {"view": False, "precision": "mixed", "batch": 8})
    found = ask(f"{json.dumps([STATE | each for each in changes])}.map(s => F.peak(s, F.largest(s, 24e9)))")
    assert found == pytest.approx([24e9] * 3)


@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
def test_layers_and_buckets_are_those_of_torch(ask, model):
    """Parameters by torchvision, buckets by torch's own function, of tensors in the reverse order of their modules."""
    import torch.distributed as dist
    import torchvision

    tensors = list(getattr(torchvision.models, model)().parameters())[::-1]
    ours = ask(f"F.buckets(F.gradients(F.layers('{model}'), 1, 4), 1, 25).map(b => b.nbytes)", "timeline")
    groups, _ = dist._compute_bucket_assignment_by_size(tensors, [2**20, 25 * 2**20])
    assert ours == [sum(tensors[i].numel() * 4 for i in group) for group in groups]


def test_gpt_has_the_parameters_of_the_formula(ask):
    total = sum(size for sizes, _ in ask("F.layers('gpt')", "timeline") for size in sizes)
    tied = formulas.gpt_parameters(layers=12, width=768, context=1024, vocabulary=50257) - 50257 * 768
    assert total == tied


def test_a_step_is_that_of_the_forecast(ask):
    """Buckets and times as in bench/predict/step: one all-reduce at a time, each when its bucket is ready."""
    state = {"model": "resnet50", "backward": 43, "ranks": 8, "gbit": 1.4, "alpha": 20, "cap": 25, "first": 1,
             "late": 7, "sync": "during", "fp16": False}  # fmt: skip
    both = f"[F.compute({json.dumps(state)}), F.gradients(F.layers('resnet50'), 0.043, 4)]"
    found, gradients = ask(both, "timeline")
    tensors = [SimpleNamespace(nbytes=g["nbytes"], ready_s=g["ready"] + 1e-12 * i) for i, g in enumerate(gradients)]
    begin, beta = 0.007 + 0.0215, 8e-9 / 10**1.4
    messages = []
    for bucket in buckets_of(SimpleNamespace(tensors=tensors), cap_mib=None):
        seconds = formulas.ring_all_reduce_s(sum(t.nbytes for t in bucket), 8, 2e-5, beta)
        messages.append(Message("", begin + bucket[-1].ready_s, 0.0, seconds, 0))
    right = [(start, end) for _, start, end, _ in message_times(messages, at_once=1)]
    got = [(each["begin"], each["end"]) for each in found["sent"]]
    assert [x for pair in got for x in pair] == pytest.approx([x for pair in right for x in pair], rel=1e-6)
    assert found["exposed"] == pytest.approx(right[-1][1] - (begin + 0.043), rel=1e-6)


def test_the_measured_mark_is_the_committed_record(tmp_path):
    mark = evaluate(scripts(), "Figure.all.timeline.measured", tmp_path)
    suite = records.reference("breakdown")
    for arm, key in (("ddp", "step"), ("ddp no_sync", "without")):
        found = [1e3 * r.data["summary"]["step_time_s"]["median"] for r in suite.programs[arm].records]
        assert mark[key] == pytest.approx(statistics.median(found), abs=0.05) and mark["rounds"] == len(found)


def all_reduce(way, ranks, machines=1, order="blocks"):
    return {"way": way, "ranks": ranks, "machines": machines, "order": order, "numbers": "5, 1, 4", "megabytes": 40,
            "inside": 1, "between": 0, "alphaInside": 10, "alphaBetween": 50}  # fmt: skip


def test_every_algorithm_leaves_the_sum_on_every_rank(ask):
    ways = ("ring", "collector", "tree", "doubling", "machines")
    cases = [all_reduce(*case) for case in itertools.product(ways, range(2, 9), range(1, 5), ("blocks", "turns"))]
    bad = ask(f"""{json.dumps(cases)}.filter(state => {{
      const result = F.compute(state), last = result.cells[result.cells.length - 1];
      const whole = cell => cell.ranks.length === state.ranks && new Set(cell.ranks).size === state.ranks;
      return !last.every(row => row.every(cell => cell.value === result.sum && whole(cell)));
    }})""", "allreduce")  # fmt: skip
    assert bad == []


def test_times_and_bytes_are_those_of_the_formulas(ask):
    link, counts = (1e-5, 8e-10), (2, 3, 4, 8)
    pairs = [[all_reduce("ring", ranks), all_reduce("tree", ranks)] for ranks in counts]
    found = ask(f"{json.dumps(pairs)}.map(pair => pair.map(state => F.compute(state)))", "allreduce")
    for ranks, (ring, tree) in zip(counts, found, strict=True):
        assert ring["time"] == pytest.approx(formulas.ring_all_reduce_s(40e6, ranks, *link))
        assert ring["received"] == pytest.approx([formulas.received_bytes(40e6, ranks, all_reduces=1)] * ranks)
        assert ring["bus"] == pytest.approx(formulas.bus_bandwidth(40e6, ring["time"], ranks))
        assert tree["time"] == pytest.approx(2 * formulas.tree_broadcast_s(40e6, ranks, *link))


def test_bytes_over_the_slow_link_are_those_that_chapter_12_counts(ask):
    """In times the tensor: a ring in order, one with ranks in turn, by machines; on 2 x 2 and on 4 x 2 devices."""
    ways = (("ring", "blocks"), ("ring", "turns"), ("machines", "blocks"))
    cases = [all_reduce(way, *shape, order) for shape in ((4, 2), (8, 4)) for way, order in ways]
    left = ask(f"{json.dumps(cases)}.map(state => Math.max(...F.compute(state).left) / 40e6)", "allreduce")
    assert left == pytest.approx([1.5, 3, 1, 1.75, 3.5, 1.5])


def test_padding_and_dropping_are_those_of_torch(ask):
    from torch.utils.data import DistributedSampler

    cases = list(itertools.product((4, 7, 10, 32), (1, 2, 3, 4, 6), (False, True)))
    found = ask(f"{json.dumps(cases)}.map(([count, ranks, drop]) => F.distributed(count, ranks, drop))", "shares")
    for (count, ranks, drop), shares in zip(cases, found, strict=True):
        right = [list(DistributedSampler(range(count), ranks, r, shuffle=False, drop_last=drop)) for r in range(ranks)]
        assert shares == right, (count, ranks, drop)


def test_ten_images_on_four_ranks_are_those_of_chapter_9(ask):
    state = {"images": 10, "ranks": 4, "epochs": 1, "sampler": "distributed", "shuffle": False, "setEpoch": True,
             "seeds": "same", "wrong": "0, 1", "workers": 2, "streams": "same", "generator": "torch"}  # fmt: skip
    accuracy = ask(f"F.compute({json.dumps(state)}).accuracy", "shares")
    assert accuracy == pytest.approx({"right": 80, "summed": 100 * 8 / 12, "mean": 100 * 8 / 12})


def test_streams_are_those_of_the_seeds(ask):
    """Of 3 ranks with 2 workers: torch's own generators differ by worker, one that the data set keeps does not."""
    base = {"images": 6, "ranks": 3, "epochs": 1, "sampler": "nth", "shuffle": False, "setEpoch": True, "seeds": "same",
            "wrong": "", "workers": 2}  # fmt: skip
    pairs = itertools.product(("torch", "kept"), ("same", "rank"))
    states = [base | {"generator": generator, "streams": seeds} for generator, seeds in pairs]
    found = ask(f"{json.dumps(states)}.map(state => F.compute(state).streams)", "shares")
    assert [len({name for row in rows for name in row}) for rows in found] == [2, 6, 1, 3]


def test_speed_and_time_to_the_target_are_those_of_the_formulas(ask):
    state = {"ms": 64, "megabytes": 102, "batch": 256, "devices": 3, "gbit": 1, "alpha": 20, "hidden": 80,
             "scaling": "weak", "critical": 3}  # fmt: skip
    both = f"(state => [F.relative(F.at(state, 8), F.at(state, 1)), F.breakEven(state, 2)])({json.dumps(state)})"
    found, edge = ask(both, "pay")
    exchange = formulas.ring_all_reduce_s(102e6, 8, 2e-5, 8e-10)
    step = 0.064 + exchange - 0.8 * 2 / 3 * 0.064
    assert found["throughput"] == pytest.approx(8 * 256 / step)
    assert found["efficiency"] == pytest.approx(formulas.scaling_efficiency(8 * 256 / step, 256 / 0.064, 8))
    assert found["target"] == pytest.approx(0.064 * (1 + 1000 / 256) / (step * (1 + 1000 / 2048)))
    exposed = formulas.ring_all_reduce_s(102e6, 2, 2e-5, 8e-9 / edge) - 0.8 * 2 / 3 * 0.064
    assert exposed == pytest.approx(0.064), "at the break-even, two devices need twice the time of one"


def test_verdicts_are_those_that_chapter_14_measures(ask):
    """Over Gloo, without and with DETAIL, as in the outputs of the chapter."""
    base = {"ranks": "2", "backend": "gloo", "detail": False, "equal": True}
    plain = {"order": "wrong", "kinds": "hangs", "groups": "hangs", "begun": "returns", "missing": "hangs"}
    detail = plain | {"kinds": "raises", "begun": "hangs"}
    for wanted, change in ((plain, {}), (detail, {"detail": True})):
        state = json.dumps(base | change)
        states = f"Object.entries(F.programs).map(([name, columns]) => [name, {{ ...{state}, columns }}])"
        found = ask(f"Object.fromEntries({states}.map(([name, state]) => [name, F.compute(state)]))", "hang")
        assert {name: found[name]["verdict"] for name in wanted} == wanted
    assert [each["a"] for each in found["order"]["values"]] == [11, 11]
    assert found["groups"]["waitsFor"] == [[1], [0]]


def test_the_texts_name_figures_that_exist():
    texts = [*(PROJECT / "tutorials").glob("*.md")]
    named = {name for text in texts for name in FIGURES if f"site/figures/{name}.svg" in text.read_text()}
    assert named == set(FIGURES)
