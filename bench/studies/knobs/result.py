"""A sweep of settings compared: each against the same mode with the settings of the run."""

from bench.analysis import stats
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.comparison import compare as compare_programs
from bench.analysis.suite import Program, Suite
from bench.config.options import KNOBS, UNSET
from bench.studies.base import Hooks
from bench.studies.knobs.study import COMPILE_NOTE, RULES
from bench.studies.programs import shown
from bench.studies.speed import grids, summary  # noqa: F401, a part of this study


def compare(suite: Suite) -> Result:
    return compare_suite(suite, RULES, all_pairs=False)


def about(suite: Suite) -> str:
    return suite.first.config.mode


def settings_of(suite: Suite) -> tuple[Program | None, dict[str, dict]]:
    """The program with the settings of the run, and label -> the options that each other program sets."""
    programs = list(suite.programs.values())
    base = programs[0] if programs else None
    return base, {program.label: program.overrides(base) for program in programs[1:]}


def compared(suite: Suite) -> dict[str, stats.Comparison]:
    base, settings = settings_of(suite)
    return {label: compare_programs(suite, base.label, label) for label in settings}


def answer(result: Result) -> list[str]:
    """The settings that are shown to be faster than those of the run, the most first; what the run had, and what chance
    does among so many settings."""
    suite, found = result.suite, compared(result.suite)
    base, _ = settings_of(suite)
    if suite.disturbed or suite.n < stats.FEWEST_ROUNDS:
        return [*(each.sentence(base.label, label) for label, each in found.items()), base_words(base)]
    faster = sorted((label for label in found if found[label].verdict == "faster"), key=lambda x: -found[x].ratio)
    lines = [found[label].sentence(base.label, label) for label in faster]
    if not faster:
        lines.append(f"{base.label}: none of {len(found)} settings is shown to be faster than those of the run")
    return [*lines, base_words(base), *chance(suite)]


def base_words(base: Program) -> str:
    config = base.config
    given = [n for n in UNSET if n in KNOBS and getattr(config, n) != UNSET[n]]
    listed = ", ".join(f"{n}={shown(getattr(config, n))}" for n in given)
    why = " (TUNED)" if config.tuned else ""
    if not base.first.mode.knobs:  # no engine: options of training were swept
        switches = ("channels_last", "cudnn_benchmark", "fused", "compile")
        ways = [config.precision, *(n for n in switches if getattr(config, n))]
        return f"{base.label}: the settings of the run, {', '.join(ways)}{why}."
    text = f"not the engine's default{why}: {listed}" if given else f"all the engine's defaults{why}"
    return f"{base.label}: the settings of the run, {text}."


def chance(suite: Suite) -> list[str]:
    """How many settings were compared, and what chance does then; nothing where there is no interval."""
    count = len(settings_of(suite)[1])
    if not count or suite.disturbed or suite.n < stats.FEWEST_ROUNDS:
        return []
    return [
        f"{count} {'setting' if count == 1 else 'settings'} compared, each at 95 %: of settings that change nothing, "
        "about one in twenty would be called different by chance."
    ]


def notes(suite: Suite) -> list[str]:
    """What must be known of a suite in which some program is compiled; nothing of others."""
    return [COMPILE_NOTE] if any(program.config.compile for program in suite.programs.values()) else []


HOOKS = Hooks(about=about, notes=notes)
