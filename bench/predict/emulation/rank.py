"""One rank of `bench cluster emulate`: it joins as in training, wrapped by the mode, but its
computation is a wait. Rank 0 writes RUN_DIR/emulation.json.

For each step each rank draws one of the profile's timed steps, so that the slowest rank is as slow as on separate
devices. With PROFILE=1 rank 0 records the timeline of one more step, in which every rank takes the median step.
"""

import functools
import itertools
import sys
import time
from pathlib import Path

from bench.config.options import RunConfig
from bench.predict.step.engines import REST
from bench.process.heartbeat import StatusWriter

PHASES = ("forward", "backward", "synchronize", "optimizer")
ASK_AGAIN_S = 0.0005


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    status.phase("joining the group")
    import torch

    from bench.measure.environment import collect_environment
    from bench.measure.load import Load
    from bench.measure.node import machine_of
    from bench.modes import load_mode
    from bench.predict.emulation.record import draw_factors, read_plan, write
    from bench.predict.emulation.stand_in import PACE, StandIn, WaitingOptimizer
    from bench.profile.clocks import join_timelines
    from bench.profile.timeline import StepTimeline

    torch.set_num_threads(config.threads_per_process)
    mode, plan = load_mode(config.mode)(config), read_plan(config.label.probe)
    leave_cores()
    status.phase("building the model")
    if config.profile:
        mode.timeline = StepTimeline(mode.topology.device)
    model = mode.wrap_model(StandIn(plan.profile))
    per_byte = plan.profile.optimizer_s / plan.profile.nbytes
    optimizer = mode.wrap_optimizer(WaitingOptimizer(model.parameters(), seconds_per_byte=per_byte), model)
    factors = draw_factors(plan.profile.factors, config.seed, mode.topology.rank)
    count = config.warmup_steps + config.timed_steps
    status.total(count)
    samples, load = [], None
    for step in range(count):
        if step == config.warmup_steps:
            mode.barrier()
            load = Load()
        status.step(step)
        samples.append(take_step(mode, model, optimizer, plan, next(factors), status))
    timed = samples[config.warmup_steps :]
    part = {
        "rank": mode.topology.rank,
        "step_time_s": [sum(sample.values()) for sample in timed],
        "phase_time_s": {name: [sample[name] for sample in timed] for name in PHASES},
        "load": load.stop(),
        "devices": [{}],
        "node": machine_of(mode),
    }
    if mode.timeline:
        mode.timeline.record(lambda: take_step(mode, model, optimizer, plan, 1.0, status), mode.barrier, profiled=False)
        mode.timeline.add_busy("main thread", PACE.waited)
        watched = mode.timeline.result(count + 1)
        part |= {"timeline": watched} if mode.topology.rank == 0 else {}
    status.phase("collecting results")
    parts = mode.gather(part)
    if mode.topology.rank == 0:
        join_timelines(parts)
        write(run_dir, config, plan, mode.topology, collect_environment(), parts, mode.facts(optimizer))
    status.phase("done")
    mode.close()


def take_step(mode, model, optimizer, plan, factor: float, status: StatusWriter) -> dict[str, float]:
    """One step; seconds by phase, with "rest" before them."""
    import torch

    from bench.predict.emulation.stand_in import PACE

    def begin(phase: str) -> None:
        moments.append(time.perf_counter())
        status.phase(phase)
        if mode.timeline:
            mode.timeline.phase(phase)

    if mode.timeline:
        mode.timeline.phase(REST)
    moments = [time.perf_counter()]
    PACE.step(plan.dilate * factor)
    PACE.wait(moments[0], plan.profile.other_s)
    begin("forward")
    optimizer.zero_grad()
    loss = model(torch.ones(1, requires_grad=True)).sum()
    begin("backward")
    loss.backward()
    begin("synchronize")
    mode.synchronize(optimizer)
    begin("optimizer step")
    mode.step(optimizer)
    moments.append(time.perf_counter())
    lengths = [end - begin for begin, end in itertools.pairwise(moments)]
    return dict(zip(("rest", *PHASES), lengths, strict=True))


def leave_cores() -> None:
    """Let a rank that waits for Horovod sleep between two polls. Horovod polls without a pause
    (horovod/torch/mpi_ops_v2.cc, WaitAndClear), which takes a core from the other ranks. Call it after Horovod is
    imported; without Horovod it does nothing."""
    if (library := sys.modules.get("horovod.torch.mpi_lib_v2")) is None:
        return
    wait = library.horovod_torch_wait_and_clear

    @functools.wraps(wait)
    def wait_asleep(handle: int) -> None:
        while not library.horovod_torch_poll(handle):
            time.sleep(ASK_AGAIN_S)
        wait(handle)

    library.horovod_torch_wait_and_clear = wait_asleep
