"""``bench doctor gpu``: checks that need a GPU, in parts, within a budget; it continues where it stopped."""

import dataclasses
import os
import re
from pathlib import Path

from bench.analysis.tables import print_grid, terminal
from bench.config.command_line import from_arguments
from bench.config.flags import is_on
from bench.config.options import UNSET, RunConfig
from bench.errors import ExitCode, UserError
from bench.launch.devices import require_fit, usable_gpus
from bench.process.ending import signals_as_interrupt
from bench.proof.gpu_check import runner
from bench.proof.gpu_check.base import FAILED, PARTS

UNITS = {"s": 1, "m": 60, "h": 3600}


def run(args) -> int:
    """Run the checks, print each result immediately and a table at the end; exit code 1 if one failed. Raises UserError
    without a GPU, unless PLAN=1."""
    asked, modules = from_arguments(args), [PARTS[name] for name in parts_of(args.part)]
    budget_s, only_plan = seconds("BUDGET", args.budget), is_on("PLAN", args.plan)
    gpus = usable_gpus(asked)
    if gpus and len(gpus) < asked.num_devices:
        raise UserError(
            f"GPUS={asked.num_devices} is more than the {len(gpus)} visible here: use GPUS={len(gpus)} or fewer"
        )
    gpus = gpus if asked.num_devices == 1 else gpus[: asked.num_devices]
    if asked.out == UNSET["out"] and gpus:
        asked = dataclasses.replace(asked, out=f"results/reference/{folder_of(gpus)}")
    asked = dataclasses.replace(asked, gpu_ids=None, num_devices=1)
    if only_plan:
        known = (runner.Findings(Path(asked.out)), runner.key_of(asked, gpus), len(gpus)) if gpus else ()
        print("\n".join(runner.plan(modules, *known)))
        return ExitCode.DONE
    if not gpus:
        raise UserError(
            "doctor gpu needs a GPU, but none is visible here: `bench doctor` shows why; PLAN=1 works without"
        )
    require_fit(RunConfig(device="cuda"), gpus)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    console, results = terminal(), []

    def say(sentence: str) -> None:
        console.print(sentence, markup=False)

    with signals_as_interrupt():
        results = runner.run_checks(modules, asked, gpus, budget_s, say)
    print_grid(console, runner.table(results))
    print(f"{runner.counted(results)}: {Path(asked.out).resolve() / runner.FILE}")
    return ExitCode.FAILED if any(found["outcome"] == FAILED for found in results) else ExitCode.DONE


def folder_of(gpus: list) -> str:
    """The name of this machine's folder, as in 2x-nvidia-a40."""
    return re.sub(r"[^a-z0-9]+", "-", f"{len(gpus)}x-{gpus[0].name}".lower()).strip("-")


def parts_of(text: str | None) -> list[str]:
    """PART=A1,B1 -> ["A1", "B1"], in the table's order; all without it. Raises UserError for an unknown one."""
    wanted = [name.strip().upper() for name in (text or ",".join(PARTS)).split(",")]
    if unknown := [name for name in wanted if name not in PARTS]:
        raise UserError(f"unknown PART={unknown[0]}: choose from {', '.join(PARTS)}, separated by commas")
    return [name for name in PARTS if name in wanted]


def seconds(name: str, text: str) -> float:
    """A time from the command line. Raises UserError for anything else.

    >>> [seconds("BUDGET", text) for text in ("45m", "600s", "1.5h")]
    [2700.0, 600.0, 5400.0]
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text.strip())
    if not found or not float(found[1]):
        raise UserError(f"{name}={text}: write a duration such as 45m, 600s or 1h")
    return float(found[1]) * UNITS[found[2]]
