"""Compare a replayed unfairness: the verdicts of the fair and the unfair comparison, on one axis."""

from bench.analysis import ratio_figure, style, words
from bench.analysis.comparison import Pair, Result, compare_suite
from bench.analysis.suite import Suite
from bench.errors import UserError
from bench.studies.replay.study import REPLAYS, VARIANTS


def compare(suite: Suite) -> Result:
    """The base, the fair and the unfair program. Raises UserError if one of them is missing."""
    if suite.programs and [p.config.label.variant for p in suite.programs.values()] != list(VARIANTS):
        raise UserError(
            f"suite {suite.id} does not contain all of its configurations ({', '.join(VARIANTS)}): run it again"
        )
    return compare_suite(suite)


def pairs_of(result: Result) -> list[Pair]:
    base, fair, unfair = result.suite.programs
    return [result.pair(base, fair), result.pair(base, unfair)]


def changed(suite: Suite) -> list[str]:
    fair, unfair = (suite.of_variant(variant) for variant in VARIANTS[1:])
    return list(unfair.overrides(fair)) if fair and unfair else []


def about(suite: Suite) -> str:
    options = changed(suite)
    known = [name for name, case in REPLAYS.items() if case.changes and case.changes in options]
    return known[0] if known else ", ".join(options) or "nothing"


def shift_of(result: Result) -> str:
    first, last = pairs_of(result)
    between = "the unfair setting" if changed(result.suite) else "nothing (the control)"
    return (
        f"Estimate: ×{first.comparison.ratio:.2f} ({first.b}) becomes ×{last.comparison.ratio:.2f} ({last.b}). "
        f"Changed: only {between}."
    )


def answer(result: Result) -> list[str]:
    """The fair verdict, the unfair one, the change between them, and its expected direction."""
    _, fair, unfair = result.suite.programs
    c = result.pair(fair, unfair).comparison
    lines = [*map(ratio_figure.words_of, pairs_of(result)), shift_of(result)]
    case = REPLAYS.get(about(result.suite))
    if c.verdict in ("disturbed", "preview") or not case:
        return lines
    seen = "no change" if c.verdict == "tie" else c.verdict
    moved = f"× {words.with_span(c.ratio, c.low, c.high)}: {seen}"
    return [
        *lines,
        f"Effect of the unfair setting: {moved}; expected here: {case.moves[result.suite.device] or 'no change'}",
    ]


@style.styled
def draw(result):
    title = "Effect of an unfair setting on the result" if changed(result.suite) else "Control: nothing changed"
    return ratio_figure.draw_pairs(result, pairs_of(result), title, (shift_of(result),))


FIGURES = {"replay": {"replay": draw}}
