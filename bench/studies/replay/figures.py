"""A classic unfairness, replayed on purpose: the verdict of the fair comparison beside that of the unfair one."""

from bench.analysis import style
from bench.analysis.suite import REPLAYED
from bench.config.options import PROGRAM, WORK, names
from bench.studies.compare import figures as compare


@style.styled
def draw(suite_or_result):
    """The fair and the unfair program against the same base: two rows on one axis."""
    result = style.result_of(suite_or_result)
    pairs = pairs_of(result)
    more = (shift_of(result.suite, pairs),)
    title = "How far an unfair setting moves the verdict" if changed(result.suite) else "The control of the replays"
    return compare.draw_pairs(result, pairs, title, more)


def role_of(suite, part: str) -> str | None:
    """The role of a part, one of REPLAYED, by the beginning of its name; None where there is none."""
    return next((role for role in suite.roles if role.startswith(f"{part}: ")), None)


def pairs_of(result) -> list:
    """The fair and the unfair program against the base, in this order. result: of a whole replay, as it always is."""
    base, fair, unfair = (role_of(result.suite, part) for part in REPLAYED)
    return [result.pair(base, fair), result.pair(base, unfair)]


def changed(suite) -> list[str]:
    """The options in which the fair and the unfair program differ; none for the control."""
    roles = [role_of(suite, part) for part in REPLAYED[1:]]
    if None in roles:
        return []
    one, other = (suite.roles[role][0]["config"] for role in roles)
    return [name for name in names(*WORK, *PROGRAM) if one[name] != other[name]]


def shift_of(suite, pairs: list) -> str:
    """The estimates of the fair and the unfair program in a sentence."""
    first, last = pairs
    between = "nothing changed but the unfair setting" if changed(suite) else "nothing changed at all: the control"
    return (
        f"Estimate: ×{first.comparison.ratio:.2f} ({first.b}) becomes ×{last.comparison.ratio:.2f} ({last.b}), with "
        f"{between}."
    )
