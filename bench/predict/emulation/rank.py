"""One rank of `bench emulate`: it joins as a rank of a training does, its model and optimizer are wrapped by the mode,
and it takes steps; what it computes is a wait. Rank 0 leaves RUN_DIR/emulation.json.

Each rank draws for each step one of the profile's timed steps, and takes as much longer or shorter as that was: so the
slowest rank is as slow as on devices of their own. With PROFILE=1 rank 0 keeps the timeline of one more step, for which
every rank waits as long as the profile's median step took.
"""

import itertools
import time
from pathlib import Path

from bench.config.options import RunConfig
from bench.predict.emulation.horovod_waits import leave_cores
from bench.predict.emulation.plan import Plan, drawn, find
from bench.predict.step.engines import REST
from bench.process.heartbeat import StatusWriter

PHASES = ("forward", "backward", "synchronize", "optimizer")


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    """Join, build, step, collect, write."""
    status.phase("joining the group")
    import torch

    from bench.measure.environment import collect_environment
    from bench.measure.horovod_timeline import share_communication
    from bench.measure.load import Load
    from bench.measure.node import machine_of
    from bench.measure.timeline import StepTimeline
    from bench.modes import load_mode
    from bench.predict.emulation.record import write
    from bench.predict.emulation.stand_in import StandIn, WaitingOptimizer

    torch.set_num_threads(config.threads_per_process)
    mode, plan = load_mode(config.mode)(config), find(config.label.probe)
    leave_cores()
    status.phase("building the model")
    if config.profile:
        mode.timeline = StepTimeline(mode.topology.device)
    model = mode.wrap_model(StandIn(plan.profile))
    per_byte = plan.profile.optimizer_s / plan.profile.nbytes
    optimizer = mode.wrap_optimizer(WaitingOptimizer(model.parameters(), seconds_per_byte=per_byte), model)
    factors = drawn(plan.profile.factors, config.seed, mode.topology.rank)
    status.total(config.warmup_steps + config.timed_steps)
    samples, load = [], None
    for step in range(config.warmup_steps + config.timed_steps):
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
        watched = timeline_of(mode, lambda: take_step(mode, model, optimizer, plan, 1.0, status))
        part |= {"timeline": watched} if mode.topology.rank == 0 else {}
    status.phase("collecting results")
    parts = mode.gather(part)
    if mode.topology.rank == 0:
        share_communication(parts)
        write(run_dir, config, plan, mode.topology, collect_environment(), parts, mode.facts(optimizer))
    status.phase("done")
    mode.close()


def timeline_of(mode, step) -> dict:
    """What computes and what is sent in one more step: the stand-in's waits are its computation."""
    from bench.predict.emulation.stand_in import PACE

    mode.timeline.record(step, mode.barrier, profiled=False)
    mode.timeline.add_busy("main thread", PACE.waited)
    return mode.timeline.result(mode.config.warmup_steps + mode.config.timed_steps + 1)


def take_step(mode, model, optimizer, plan: Plan, factor: float, status: StatusWriter) -> dict[str, float]:
    """One step; seconds by phase, the rest of a step before them as "rest"."""
    import torch

    from bench.predict.emulation.stand_in import PACE

    def begin(phase: str) -> None:
        status.phase(phase)
        if mode.timeline:
            mode.timeline.phase(phase)

    if mode.timeline:
        mode.timeline.phase(REST)
    moments = [time.perf_counter()]
    PACE.step(plan.dilate * factor)
    PACE.wait(moments[0], plan.profile.other_s)
    moments.append(time.perf_counter())
    begin("forward")
    optimizer.zero_grad()
    loss = model(torch.ones(1, requires_grad=True)).sum()
    moments.append(time.perf_counter())
    begin("backward")
    loss.backward()
    moments.append(time.perf_counter())
    begin("synchronize")
    mode.synchronize(optimizer)
    moments.append(time.perf_counter())
    begin("optimizer step")
    mode.step(optimizer)
    moments.append(time.perf_counter())
    lengths = [end - begin for begin, end in itertools.pairwise(moments)]
    return dict(zip(("rest", *PHASES), lengths, strict=True))
