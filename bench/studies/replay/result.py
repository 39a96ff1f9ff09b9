"""A replayed unfairness compared: the verdict of the fair comparison and that of the unfair one."""

from bench.analysis import ratio_figure, words
from bench.analysis.comparison import Pair, Result, compare_suite
from bench.analysis.suite import Suite
from bench.errors import UserError
from bench.studies.base import Hooks
from bench.studies.replay.study import REPLAYS, VARIANTS
from bench.studies.speed import grids, summary  # noqa: F401, a part of this study


def compare(suite: Suite) -> Result:
    """The base, the fair and the unfair program. Raises UserError when one of the three is missing."""
    if suite.programs and [p.config.label.variant for p in suite.programs.values()] != list(VARIANTS):
        raise UserError(f"suite {suite.id} has lost one of its programs ({', '.join(VARIANTS)}): run it again")
    return compare_suite(suite)


def pairs_of(result: Result) -> list[Pair]:
    base, fair, unfair = result.suite.programs
    return [result.pair(base, fair), result.pair(base, unfair)]


def changed(suite: Suite) -> list[str]:
    """The options in which the fair and the unfair program differ; none for the control."""
    fair, unfair = (suite.of_variant(variant) for variant in VARIANTS[1:])
    return list(unfair.overrides(fair)) if fair and unfair else []


def about(suite: Suite) -> str:
    options = changed(suite)
    known = [name for name, case in REPLAYS.items() if case.changes and case.changes in options]
    return known[0] if known else ", ".join(options) or "nothing"


def shift_of(result: Result) -> str:
    first, last = pairs_of(result)
    between = (
        "nothing changed but the unfair setting" if changed(result.suite) else "nothing changed at all: the control"
    )
    return (
        f"Estimate: ×{first.comparison.ratio:.2f} ({first.b}) becomes ×{last.comparison.ratio:.2f} ({last.b}), with "
        f"{between}."
    )


def answer(result: Result) -> list[str]:
    """The fair verdict, the unfair one, the move between them, and where it was expected to go."""
    _, fair, unfair = result.suite.programs
    c = result.pair(fair, unfair).comparison
    lines = [*map(ratio_figure.words_of, pairs_of(result)), shift_of(result)]
    if c.verdict in ("disturbed", "preview"):
        return lines
    if case := REPLAYS.get(about(result.suite)):
        seen = {"tie": "it did not move"}.get(c.verdict, c.verdict)
        expected = case.moves[result.suite.device] or "no move"
        lines.append(
            f"The unfairness alone: × {words.with_span(c.ratio, c.low, c.high)}: {seen}; expected here: {expected}"
        )
    return lines


HOOKS = Hooks(about=about)
