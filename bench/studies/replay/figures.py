"""A replayed unfairness drawn: the verdict of the fair comparison above that of the unfair one, on one axis."""

from bench.analysis import ratio_figure, style
from bench.studies.replay.result import changed, pairs_of, shift_of


@style.styled
def draw(result):
    title = "How far an unfair setting moves the verdict" if changed(result.suite) else "The control of the replays"
    return ratio_figure.draw_pairs(result, pairs_of(result), title, (shift_of(result),))


FIGURES = {"replay": {"replay": draw}}
