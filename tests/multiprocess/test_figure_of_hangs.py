"""The verdicts of the interactive figure "Will it hang?" against real Gloo: two ranks, each program in new groups."""

import functools
import json
from datetime import timedelta

import torch
import torch.distributed as dist

from bench.course.figures import scripts
from bench.course.ranks import run_on_ranks
from tests.browser.scripts import evaluate, needs_javascript

LIMIT_S = 2  # of a group: longer than two ranks are apart on a busy machine


def call(op, tensor="a", group=1, later=False):
    return {"op": op, "tensor": tensor, "group": group, "later": later}


all_reduce, broadcast = functools.partial(call, "all_reduce"), functools.partial(call, "broadcast")
WAIT, BARRIER = call("wait"), call("barrier")
PROGRAMS = {
    "equal": [[all_reduce("a"), BARRIER, broadcast("b")]] * 2,
    "order": [[all_reduce("a"), all_reduce("b")], [all_reduce("b"), all_reduce("a")]],
    "broadcasts in another order": [[broadcast("a"), broadcast("b")], [broadcast("b"), broadcast("a")]],
    "begun": [
        [all_reduce("a", 1, True), all_reduce("b", 2, True), WAIT],
        [all_reduce("b", 2, True), all_reduce("a", 1, True), WAIT],
    ],
    "begun in one group": [
        [all_reduce("a", 1, True), all_reduce("b", 1, True), WAIT],
        [all_reduce("b", 1, True), all_reduce("a", 1, True), WAIT],
    ],
    "kinds": [[all_reduce("a")], [broadcast("a")]],
    "barrier": [[BARRIER], [all_reduce("a")]],
    "groups": [[all_reduce("a", 1), all_reduce("b", 2)], [all_reduce("b", 2), all_reduce("a", 1)]],
    "missing": [[broadcast("a")], []],
}


def outcome(calls):
    """The values of a and b; None if a call has timed out."""
    tensors, works = {"a": torch.ones(2), "b": torch.full((2,), 10.0)}, []
    dist.barrier()
    groups = {number: dist.new_group(timeout=timedelta(seconds=LIMIT_S)) for number in (1, 2)}
    try:
        for call in calls:
            tensor, group = tensors[call["tensor"]], groups[call["group"]]
            if call["op"] == "wait":
                [work.wait() for work in works]
            elif call["op"] == "barrier":
                dist.barrier(group)
            elif call["op"] == "broadcast":
                dist.broadcast(tensor, src=0, group=group)
            else:
                work = dist.all_reduce(tensor, group=group, async_op=call["later"])
                works += [work] if call["later"] else []
    except RuntimeError:
        return None
    return {name: tensor[0].item() for name, tensor in tensors.items()}


def outcomes(programs):
    return [outcome(columns[dist.get_rank()]) for columns in programs]


@needs_javascript
def test_a_verdict_is_what_gloo_does(tmp_path):
    state = json.dumps({"ranks": "2", "backend": "gloo", "detail": False, "equal": True})
    compute = f"columns => Figure.all.hang.functions.compute({{ ...{state}, columns }})"
    figure = evaluate(scripts(), f"Object.values({json.dumps(PROGRAMS)}).map({compute})", tmp_path)
    measured = run_on_ranks(outcomes, 2, list(PROGRAMS.values()))
    for name, said, *found in zip(PROGRAMS, figure, *measured, strict=True):
        assert said["blocked"] == [rank for rank in (0, 1) if found[rank] is None], name
        for rank in {0, 1} - set(said["blocked"]):
            assert said["values"][rank] == found[rank], name
    verdicts = dict(zip(PROGRAMS, (said["verdict"] for said in figure), strict=True))
    assert [name for name, verdict in verdicts.items() if verdict == "returns"] == ["equal", "begun"]
