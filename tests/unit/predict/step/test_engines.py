"""What the simulated engines do, beside steps that are worked out by hand: 10 MB at 10 MB/s on two ranks take 1 s."""

import dataclasses
import itertools
import random

import pytest
import torch
import torch.distributed as dist

from bench import formulas
from bench.config.options import RunConfig
from bench.predict.step import engines
from bench.predict.step.engines import ENGINES
from bench.predict.step.link import Link, of_records
from bench.predict.step.profile import Tensor
from tests import networks
from tests.profiles import GPU, MB, PROFILE

SLOW = Link(0.0, 1e-7, "10 MB/s")  # one of two ranks sends each byte once: 2 (2 - 1) / 2
OVER_NCCL = dataclasses.replace(SLOW, carrier="nccl")
IDLE = 2**20 * 1e-7  # s: Gloo's all-reduce stands idle for one piece, of 1 MiB
SMALL_BUCKETS = {"bucket_cap_mb": 5.0}


def step(mode: str, ranks: int = 2, link: Link = SLOW, profile=PROFILE, **options):
    """One step of a mode."""
    return ENGINES[mode](profile, RunConfig(mode=mode, num_devices=2, **options), ranks, link)


def test_a_bucket_leaves_when_it_is_full_and_behind_the_one_before():
    """The rest ends at 0.5, forward at 1.5; the first bucket is there at 2.5, the last one at 3.5. Each takes a second,
    and the piece for which links stand idle."""
    found = step("ddp", **SMALL_BUCKETS)
    assert [entry[0] for entry in found.sent] == ["bucket 0", "bucket 1"]
    assert [entry[1:3] for entry in found.sent] == [pytest.approx((2.5, 3.5 + IDLE)), pytest.approx((3.5, 4.5 + IDLE))]
    assert found.seconds == pytest.approx(5.0 + IDLE) and found.exposed_s == pytest.approx(1.0 + IDLE)


SLOWER = dataclasses.replace(SLOW, beta_s=2e-7)


@pytest.mark.parametrize(("options", "seconds"), [
    ({"overlap": False}, 6.0 + 2 * IDLE),  # all buckets wait for the end of backward
    ({"compression": "fp16"}, 4.5 + IDLE),  # 0.5 s each: the last bucket is there at 3.5 and sent by 4
    # On a link half as fast the buckets queue: each takes 2 s, from 2.5 to 4.5, and to 6.5. Two at a time over Gloo end
    # no earlier, and the first piece of the first finds nothing else on the link.
    ({"link": SLOWER}, 7.0 + 2 * IDLE),
    ({"link": dataclasses.replace(SLOWER, carrier="nccl")}, 7.0),
])  # fmt: skip
def test_what_overlap_compression_and_the_link_do_to_a_step(options, seconds):
    assert step("ddp", **SMALL_BUCKETS, **options).seconds == pytest.approx(seconds)


def test_in_nodes_of_two_a_ring_leaves_each_node_once():
    """Four ranks on two nodes: of 6 hops 2 are between nodes, 6 alpha is 2 x 10 ms + 4 x 1 ms. Each link carries 1.5
    times the 10 MB, and the node's is the slowest: 1.5 s. On one node the link inside is all there is."""
    within = Link(1e-3, 1e-9, "1 GB/s", "nccl")
    between = Link(10e-3, 1e-7, "10 MB/s", "nccl").with_inside(2, within)
    assert engines.all_reduce_s(10 * MB, 4, between) == pytest.approx(0.024 + 1.5)
    assert engines.gather_s(10 * MB, 4, between) == pytest.approx(0.012 + 0.75)
    assert engines.all_reduce_s(10 * MB, 2, between) == engines.all_reduce_s(10 * MB, 2, within)
    assert engines.broadcast_s(10 * MB, 4, between) == pytest.approx(0.011 + 1.0 + 0.01)
    for mode in ENGINES:
        alone = step(mode, ranks=4, link=Link(10e-3, 1e-7, "10 MB/s", "nccl"))
        assert step(mode, ranks=2, link=within).seconds < step(mode, ranks=4, link=between).seconds <= alone.seconds


def test_ddps_buckets_are_those_that_torch_makes():
    """A small one and large ones, by torch's own function, which DDP asks for them again after the first step."""
    draw = random.Random(0)
    tensors = tuple(Tensor(str(i), (draw.choice((10, 1000, 300_000, 2**18, 9_000_000)),), "", 0.0, draw.random())
                    for i in range(60))  # fmt: skip
    profile = dataclasses.replace(PROFILE, tensors=tensors)
    for cap in (None, 1.0, 5.0):
        ordered = engines.in_ready_order(profile)
        caps = [int(mib * 2**20) for mib in ([1, 25] if cap is None else [cap])]
        gradients = [torch.empty(tensor.shape, device="meta") for tensor in ordered]
        theirs, _ = dist._compute_bucket_assignment_by_size(gradients, caps, [False] * len(gradients))
        mine = [[ordered.index(tensor) for tensor in bucket] for bucket in engines.buckets_of(profile, cap)]
        assert mine == theirs and len(mine) > 3


def test_power_sgd_over_gloo_holds_up_backward():
    """(2500 + 1000) numbers of 4 bytes: 1.4 ms for each bucket and a quarter of it for the pieces, all waited for."""
    found = step("ddp", compression="powersgd", **SMALL_BUCKETS)
    assert found.exposed_s == pytest.approx(1.25 * 2 * 4 * 3500 * 1e-7)


def test_buffers_are_sent_before_forward_and_only_where_asked_for():
    with_buffers = dataclasses.replace(PROFILE, buffers=(("float32", 5 * MB),))
    assert step("ddp", profile=with_buffers).exposed_s - step("ddp").exposed_s == pytest.approx(0.5)
    assert step("ddp", profile=with_buffers, broadcast_buffers=False).seconds == step("ddp").seconds
    assert step("fsdp", profile=with_buffers).seconds == step("fsdp").seconds


def test_horovod_sends_at_its_cycles_what_is_ready_on_all():
    """Backward begins at 1.5, so cycles of 0.4 s begin at 1.9, 2.3, 2.7: there the gradient that is ready at 2.5 is
    sent, until 3.7. The other, ready at 3.5, leaves then, and the step ends 0.5 after 4.7."""
    found = step("horovod", cycle_time_ms=400.0)
    assert [entry[1:3] for entry in found.sent] == [pytest.approx((2.7, 3.7 + IDLE)),
                                                      pytest.approx((3.7 + IDLE, 4.7 + 2 * IDLE))]  # fmt: skip
    assert found.seconds == pytest.approx(5.2 + 2 * IDLE)
    # Over NCCL it continues while it sends: the cycle at 3.6 finds the next gradient; it leaves when the link is free.
    assert step("horovod", cycle_time_ms=300.0, link=OVER_NCCL, profile=GPU).sent[1][1:3] == pytest.approx((3.7, 4.7))
    # Without overlap all gradients are there together: one message, or two where the buffer holds 10 MB.
    assert [len(step("horovod", overlap=False, fusion_mb=mb).sent) for mb in (None, 10.0)] == [1, 2]


def test_zero1_sends_the_weights_after_half_of_the_optimizers_step():
    """Two ranks own a tensor each. DDP's gradients are there at 4.5; the optimizer takes 0.25, the weights 2 s."""
    found = step("zero1", **SMALL_BUCKETS)
    assert found.seconds == pytest.approx(6.75 + IDLE)
    assert found.terms["optimizer"] == 0.25 and found.terms["weights sent"] == pytest.approx(2.0)


def test_owners_have_as_much_as_can_be():
    sizes = [8, 7, 6, 5, 4]
    tensors = [dataclasses.replace(PROFILE.tensors[0], name=str(size), shape=(size,)) for size in sizes]
    owned = engines.owners(tensors, 2, lambda tensor: tensor.nbytes)
    assert [sum(tensor.shape[0] for tensor in own) for own in owned] == [17, 13]  # 8 5 4, 7 6


def test_fsdp_over_gloo_waits_for_each_gather_and_each_scatter():
    """Half a second for each of four gathers, and a piece of a quarter of the 10 MB; two scatters that Gloo makes of
    all-reduces of 1 s; the optimizer has half of the parameters."""
    found = step("fsdp")
    assert found.terms["weights gathered, not hidden"] == pytest.approx(4 * 0.75)
    assert found.seconds == pytest.approx(0.5 + 1.0 + 2.0 + 3.0 + 2 * (1.0 + IDLE) + 0.25)
    assert step("fsdp", reshard=False).terms["weights gathered, not hidden"] == pytest.approx(2 * 0.75)


def test_what_a_measured_all_reduce_idles_is_not_counted_twice():
    """It is in its beta, and so in a gather's: half of an all-reduce, which has half of that piece. A gather idles for
    a larger one, which was not measured."""
    measured = dataclasses.replace(SLOW, idle_in_beta=True)
    assert step("ddp", link=measured, **SMALL_BUCKETS).seconds == pytest.approx(5.0)
    assert step("ddp", link=measured.at_end(0), **SMALL_BUCKETS).seconds == pytest.approx(5.0)
    found = step("fsdp", link=measured)
    assert found.terms["weights gathered, not hidden"] == pytest.approx(4 * (0.75 - IDLE / 2))


def test_fsdp_over_nccl_hides_what_it_asks_for_early():
    """The first block's weights are waited for; the second's come while it computes. Of the backward pass the gathers
    are hidden, and the last scatter is not: its 0.5 s begin when it ends."""
    found = step("fsdp", link=OVER_NCCL, profile=GPU)
    assert found.terms["weights gathered, not hidden"] == pytest.approx(0.5 + 0.5)  # each pass begins with one
    assert found.terms["gradients exchanged, not hidden"] == pytest.approx(0.5)


@pytest.mark.parametrize("mode", list(ENGINES))
def test_a_slower_link_and_more_ranks_never_make_a_step_shorter(mode):
    """But by a cycle of Horovod's, which a gradient may just miss or just not miss. One device's is the profile's."""

    def rises(seconds: list[float]) -> bool:
        return all(before <= after + 2e-3 * (mode == "horovod") for before, after in itertools.pairwise(seconds))

    links = [Link(alpha, beta, "") for alpha, beta in ((0, 0), (1e-4, 0), (1e-4, 1e-9), (1e-3, 1e-8), (1e-3, 1e-7))]
    by_link = [step(mode, ranks=4, link=link).seconds for link in links]
    assert rises(by_link) and by_link[0] >= PROFILE.step_s - PROFILE.optimizer_s
    if mode != "horovod":
        alone = step(mode, ranks=1)
        assert (alone.seconds, alone.exposed_s) == pytest.approx((PROFILE.step_s, 0.0))
    bare = dataclasses.replace(PROFILE, optimizer_s=0.0)
    by_ranks = [step(mode, ranks=ranks, link=links[3], profile=bare).seconds for ranks in (2, 4, 8, 64)]
    assert rises(by_ranks)


@pytest.mark.parametrize(("mode", "options"), [*((mode, {}) for mode in ENGINES), ("ddp", {"compression": "powersgd"})])
def test_what_a_rank_computes_and_sends_is_in_order_and_as_long_as_in_the_terms(mode, options):
    found = step(mode, ranks=4, **SMALL_BUCKETS if mode == "ddp" else {}, **options)
    moments = [moment for _, *moments in found.computed for moment in moments]
    assert moments == sorted(moments) and moments[0] >= 0 and moments[-1] <= found.seconds + 1e-9
    for name in engines.COMPUTED:
        took = sum(end - begin for what, begin, end in found.computed if what == name)
        assert took == pytest.approx(found.terms[name]), name
    assert all(0 <= begin <= end <= found.seconds + 1e-9 for _, begin, end, _ in found.sent)
    if not options:  # no message is lost: gradients; weights, too; weights twice
        rounds = {"ddp": 1, "horovod": 1, "zero1": 2, "fsdp": 3}[mode]
        assert sum(nbytes for *_, nbytes in found.sent) == rounds * PROFILE.nbytes


@pytest.mark.parametrize(("backend", "ranks"), [("gloo", 2), ("gloo", 4), ("nccl", 4)])
def test_gathers_and_scatters_that_were_measured_take_what_was_measured(backend, ranks):
    """The made-up ones take two and three times half of an all-reduce. A record without them is as it was."""
    made = {"backend": backend, "ranks": ranks, "noise": 0.0}
    whole, without = (of_records([networks.record(**made, gathers=gathers)], backend) for gathers in (True, False))
    half = formulas.ring_gather_s(4e6, ranks, networks.ALPHA, networks.BETA)
    assert engines.gather_s(4e6, ranks, whole) == pytest.approx(2 * half)
    assert engines.scatter_s(4e6, ranks, whole) == pytest.approx(3 * half)
    assert (without.gather, without.scatter) == (None, None)
    assert engines.all_reduce_s(4e6, ranks, whole) == engines.all_reduce_s(4e6, ranks, without)
    assert step("fsdp", ranks, whole).seconds > step("fsdp", ranks, without).seconds
    assert step("ddp", ranks, whole).seconds == step("ddp", ranks, without).seconds
    wide = dataclasses.replace(whole, gather=dataclasses.replace(whole.gather, beta_ends=(1e-9, 3e-9)))
    assert [wide.at_end(end).gather.beta_s for end in (0, 1)] == [1e-9, 3e-9]
