"""`bench cluster emulate`: a mode's real communication on a cluster of namespaces, with computation replaced by waits.

Outside a cluster it makes one and runs itself on the first node; inside `bench cluster` it uses that one.
"""

import dataclasses
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from bench.analysis import tables
from bench.cli.base import require_argument
from bench.cluster.make import run as run_in
from bench.cluster.plan import CLUSTER, DESCRIPTION, Cluster, read_link, read_nodes
from bench.config.command_line import from_arguments, given_options
from bench.config.fields import flag_of, variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, KNOBS, RunConfig
from bench.errors import UserError
from bench.launch.launcher import launch, resolve_here
from bench.launch.progress_bar import LiveProgress
from bench.predict.emulation import record as records
from bench.predict.emulation.record import MODES_EMULATED, Plan
from bench.predict.step import profile as profiles
from bench.predict.step.engines import CYCLE_MS
from bench.predict.step.link import rate_of

LEAST_MBIT, MOST_MBIT = 0.1, 10_000  # of the emulated links, the range of `bench cluster`
STEPS = {"warmup_steps": 2, "timed_steps": 10}  # DDP finds its buckets in the first one, and PowerSGD starts after two


def run(args) -> int:
    """Check the options before anything starts; then make the cluster, or use the current one."""
    dilate = args.dilate or 1.0
    profile = profiles.profile_of(profiles.record_at(require_argument("COMPUTE", args.compute)), args.compute)
    asked = check(args)
    if CLUSTER in os.environ:
        if args.nodes or args.link:
            raise UserError("inside a cluster, NODES and LINK come from the cluster: leave them out")
        return inside(asked, profile, dilate)
    rate, latency = (args.link or "").split(",")[0], read_link(args.link, any_rate=True)[1]
    cluster = Cluster(
        nodes=read_nodes(args.nodes or "2"),
        rate_mbit=rate_of_links(rate, dilate) if rate else None,
        latency_ms=latency * dilate,
    )
    own = {"--compute": str(Path(args.compute).expanduser().resolve()), "--dilate": f"{dilate:g}"}
    given = {flag_of(FIELDS[name]): value for name, value in given_options(args).items()}
    words = [f"{flag}={value}" for flag, value in (given | own).items()]
    return run_in(cluster, shlex.join([sys.executable, "-m", "bench", "cluster", "emulate", *words]))


def rate_of_links(text: str, dilate: float) -> float:
    """The rate of the emulated links, in Mbit/s. Raises UserError if `bench cluster` cannot make them."""
    rate = rate_of("LINK", text, text)
    if not LEAST_MBIT <= rate / dilate <= MOST_MBIT:
        raise UserError(f"LINK={text} with DILATE={dilate:g} needs links of {rate / dilate:g} Mbit/s, outside the "
                        f"range {LEAST_MBIT:g} to {MOST_MBIT}: choose another DILATE")  # fmt: skip
    return rate / dilate


def check(args) -> RunConfig:
    """The given options. Raises UserError for one that an emulation would ignore, and for a mode without
    communication."""
    asked = from_arguments(args)
    if asked.mode not in MODES_EMULATED:
        raise UserError(f"MODE={asked.mode} cannot be emulated: choose from {', '.join(MODES_EMULATED)}")
    given = [f for name, f in FIELDS.items() if getattr(args, name, None) is not None]
    for f in given:
        if f.name in KNOBS and f.name not in MODES[asked.mode].knobs:
            raise UserError(f"{variable_of(f)} has no effect in an emulation: leave it out")
    if asked.profile_kept:
        raise UserError("PROFILE=torch: ranks that wait run no operators, so use PROFILE=1")
    return asked


def inside(asked: RunConfig, profile: profiles.Profile, dilate: float) -> int:
    """On the first node: launch the ranks, and print the result. The record is the last line."""
    links = json.loads((Path(os.environ[CLUSTER]) / DESCRIPTION).read_text())["links"]
    rate = None if links["rate_mbit"] is None else links["rate_mbit"] * dilate
    plan = Plan(profile, dilate, rate, links["latency_ms"] / dilate)
    cycle_ms = (asked.cycle_time_ms or CYCLE_MS) * dilate
    slowed = {"cycle_time_ms": cycle_ms} if "cycle_time_ms" in MODES[asked.mode].knobs else {}
    left = {name: value for name, value in STEPS.items() if getattr(asked, name) is None}
    with tempfile.TemporaryDirectory(prefix="bench-emulation-") as folder:
        probe = plan.put(Path(folder) / "plan.json")
        # No data is read, and nothing is computed.
        nothing = {"device": "cpu", "data": "synthetic", "per_device_batch": 1, "baselines": False}
        config = dataclasses.replace(asked, **nothing, **slowed, **left).labelled(study="emulate", probe=probe)
        config = resolve_here(config)
        console = tables.terminal()
        with LiveProgress(config, console, "emulate") as watch:
            path = launch(config, watch)
    record = records.load(path)
    tables.print_lines(console, records.provenance_lines(record))
    tables.print_grid(console, records.grid(record))
    tables.print_lines(console, records.answer(record))
    print(f"record: {path}", flush=True)
    return 0
