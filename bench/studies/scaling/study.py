"""Weak and strong scaling: two suites, one with a fixed per-device batch, one with a fixed global batch."""

import dataclasses
from collections.abc import Iterator

from bench.analysis.certificate import Rules, number_of_devices
from bench.config.flags import whole_number
from bench.config.hosts import parse, possible
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import MODES_FLAG, bounds_of, in_mode, modes_of, prepare_modes, refuse


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    """Two suites, one after the other. With HOSTS the first machine's devices come first, then whole machines."""
    refuse(asked, "mode", "gpu_ids", *([] if asked.hosts else ["num_devices"]))
    most = flags.max_gpus or (asked.num_devices if asked.hosts else MOST)
    config, modes = prepare_modes(console, asked, modes_of(flags.modes), num_devices=most)
    for study in (WEAK, STRONG):
        yield Plan(study, programs(config, modes, most, strong=study is STRONG))


def programs(config: RunConfig, modes: list[str], max_devices: int, strong: bool) -> dict[str, RunConfig]:
    """Every mode at 1, 2, 4, … devices, on a CPU each with the same number of threads. config: resolved, for
    max_devices. Raises UserError if a global batch cannot be divided evenly."""
    threads = max(1, config.threads // max_devices)
    found = {}
    for n in device_counts(max_devices, config.hosts):
        batch = config.per_device_batch * max_devices // n if strong else config.per_device_batch
        if strong and batch * n != config.per_device_batch * max_devices:
            raise UserError(
                f"strong scaling: the global batch, BATCH={config.per_device_batch} × {max_devices}, cannot be divided "
                f"among {n} devices: choose a BATCH that makes it divisible by {device_counts(max_devices)}"
            )
        here = dataclasses.replace(config, mode="ddp", num_devices=n, per_device_batch=batch, baselines=False,
                                   threads=threads * n if config.device == "cpu" else config.threads)  # fmt: skip
        chosen = [mode for mode in [*modes, *bounds_of(here)] if n <= (MODES[mode].max_devices or n)]
        found |= {f"{mode} {n}": in_mode(here, mode) for mode in chosen}
    return found


def device_counts(most: int, hosts: str | None = None) -> list[int]:
    """Powers of two up to ``most``, and ``most`` itself; of HOSTS those that are available.

    >>> device_counts(6), device_counts(6, "a:3,b:3")
    ([1, 2, 4, 6], [1, 2, 6])
    """
    counts = {2**k for k in range(most.bit_length()) if 2**k <= most} | {most}
    return sorted(n for n in counts if not hosts or n in possible(parse(hosts)))


GROWS = ("it grows with the number of devices", number_of_devices)
WEAK_RULES = Rules({"global batch": GROWS, "images of the first steps": GROWS, "threads in total": GROWS})
STRONG_RULES = Rules({"threads in total": GROWS})
MOST = 4
MAX_GPUS = {"--max-gpus": {"help": f"up to this many [{MOST}; all of HOSTS]", "read": whole_number(2)}}
WEAK = Study(
    "weak", "compare scaling", "Weak scaling",
    "How does throughput grow with more devices at a fixed per-device batch size?",
    "weak and strong scaling of every mode, with the no-communication baseline", plans,
    example="MAX_GPUS=4", folder="scaling", flags=MAX_GPUS | MODES_FLAG, most=True, partial="memory",
)  # fmt: skip
SOONER = "How much faster is the same global batch with more devices?"
STRONG = dataclasses.replace(WEAK, name="strong", heading="Strong scaling", question=SOONER)
STUDIES = (WEAK, STRONG)
