"""A classic unfairness, replayed on purpose: the verdict of the fair comparison beside that of the unfair one."""

from bench.report.figures import compare, style


@style.styled
def draw(suite_or_result):
    """The fair and the unfair program against the same base: two rows on one axis."""
    result = style.result_of(suite_or_result)
    pairs = [pair for pair in result.pairs if pair.a == result.base]
    shift = shift_of(pairs)
    more = (shift,) if shift else ()
    return compare.draw_pairs(result, pairs, "How far an unfair setting moves the verdict", more)


def shift_of(pairs: list) -> str:
    """The estimates of the first and the last row in a sentence; empty without two rows."""
    if len(pairs) < 2:
        return ""
    first, last = pairs[0], pairs[-1]
    return (
        f"Estimate: ×{first.comparison.ratio:.2f} ({first.b}) becomes ×{last.comparison.ratio:.2f} ({last.b}), with "
        "nothing changed but the unfair setting."
    )
