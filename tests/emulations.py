"""Made-up records of emulations: valid by the schema, of a profile that tests know."""

from bench.predict.emulation.record import Plan
from bench.predict.step.profile import Profile
from tests import records
from tests.networks import environment
from tests.profiles import PROFILE


def data(ranks: int = 2, dilate: float = 1.0, steps: int = 6, mode: str = "ddp", profile: Profile = PROFILE,
         step_s: float = 4.0, rate_mbit: float = 100.0, **options) -> dict:  # fmt: skip
    """The content of an emulation's record whose steps take step_s, times the dilation on this machine."""
    load = {"own_cpu_s": 1.0, "machine_cpu_s": 8.0, "interrupts_s": 0.5, "wall_s": 10.0, "cores": 2, "steal_s": 0.0}
    phases = {"forward": 1.0, "backward": 2.0, "synchronize": 0.0, "optimizer": 0.5}
    samples = [
        {"rank": rank, "step_time_s": [step_s * dilate] * steps, "load": load,
         "phase_time_s": {name: [max(1e-6, seconds * dilate)] * steps for name, seconds in phases.items()}}
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
