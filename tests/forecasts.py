"""Made-up forecasts with what was measured and emulated of them: 20 MB of gradients over 1 Gbit/s."""

from pathlib import Path

from bench.config.options import RunConfig
from bench.predict.emulation.record import EmulationRecord, Plan, checked
from bench.predict.pictures.points import Asked
from bench.predict.step import profile as profiles
from bench.predict.step.engines import ENGINES
from bench.predict.step.link import Link, parse_link
from bench.predict.step.profile import Profile
from bench.record.view import Record
from tests import profiles as made_up
from tests import records
from tests.networks import environment

LINK = parse_link("1gbit,50us", "gloo")
LABEL = "2 namespaces of one machine, links limited to 1 Gbit/s"
SPANS = (("phase", "forward", 0.0, 0.1, None), ("phase", "backward", 0.1, 0.5, None),
         ("phase", "optimizer", 0.5, 0.52, None), ("compute", "main thread", 0.0, 0.3, None),
         ("compute", "main thread", 0.5, 0.52, None), ("communication", "bucket 0", 0.2, 0.34, 10**7),
         ("communication", "bucket 1", 0.3, 0.5, 10**7))  # fmt: skip


def one_thread(data: dict) -> dict:
    """Each process of a record has one thread, and so its own core on up to two."""
    for part in data["samples"]:
        part["threads"] = 1
    return data


def asked(modes=tuple(ENGINES), link: Link = LINK, **options) -> Asked:
    record = Record(one_thread(made_up.data(**options)))
    configs = {mode: RunConfig(mode=mode, num_devices=2) for mode in modes}
    return Asked(record, profiles.profile_of(record, "made up"), link, configs)


def measured(mode: str = "ddp", throughput: float = 120.0, label: str | None = LABEL, **options) -> Record:
    """A run on two devices, a core and a namespace each."""
    data = one_thread(records.record(mode, throughput, **options).data)
    return Record(data | ({"network": {"label": label}} if label else {}))


def emulation(ranks: int = 2, dilate: float = 1.0, mode: str = "ddp", profile: Profile = made_up.PROFILE,
              step_s: float = 4.0, rate_mbit: float = 100.0, **options) -> dict:  # fmt: skip
    """The content of an emulation's record whose steps take step_s, times the dilation on this machine."""
    load = {"own_cpu_s": 1.0, "machine_cpu_s": 8.0, "interrupts_s": 0.5, "wall_s": 10.0, "cores": 2, "steal_s": 0.0}
    phases = {"forward": 1.0, "backward": 2.0, "synchronize": 0.0, "optimizer": 0.5}
    samples = [
        {"rank": rank, "step_time_s": [step_s * dilate] * 6, "load": load,
         "phase_time_s": {name: [max(1e-6, seconds * dilate)] * 6 for name, seconds in phases.items()}}
        for rank in range(ranks)
    ]  # fmt: skip
    base = records.record(mode, num_devices=ranks, **options)
    return {
        "emulation_version": 1,
        "kind": "emulated" if dilate == 1 else f"emulated, ×{dilate:g}",
        "run_id": f"20260102-030405-{mode}-{ranks}xemulate-0000",
        "status": "ok",
        "started_at": base.started_at,
        "config": base.data["config"] | {"study": "emulate"},
        "plan": Plan(profile, dilate, rate_mbit, 0.0).to_dict(),
        "topology": {"world_size": ranks, "num_devices": ranks, "device": "cpu"},
        "environment": environment("cpu", ranks),
        "nodes": [{"ranks": list(range(ranks))}],
        "facts": {"gradient": "mean over the global batch"},
        "samples": samples,
        "provenance": {},
    }


def emulated(profile: Profile, mode: str = "ddp", ranks: int = 2, dilate: float = 4.0, watched: bool = False,
             **options) -> EmulationRecord:  # fmt: skip
    """An emulation of that profile. watched: it has a timeline."""
    data = emulation(ranks, dilate, mode=mode, profile=profile, **{"rate_mbit": 1000.0} | options)
    if watched:
        names = ("lane", "name", "start_s", "end_s", "bytes")
        spans = [dict(zip(names, span, strict=True)) for span in SPANS]
        spans = [span | {name: dilate * span[name] for name in names[2:4]} for span in spans]
        data["config"] |= {"profile": True}
        data["samples"][0]["timeline"] = {"step": 9, "step_s": 0.52 * dilate, "spans": spans, "notes": []}
    return checked(data, Path("made-up/emulation.json"))
