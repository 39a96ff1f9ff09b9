"""Numbers in words, the same in every table and on the page."""

from bench import formulas


def span(low: float | None, high: float | None, form: str = ".3f") -> str:
    return "no interval" if low is None else f"{low:{form}} to {high:{form}}"


def too_wide(value: float, low: float | None, high: float | None) -> bool:
    """Whether an interval is wider than its value: then the value is noise and is not printed as a result."""
    return low is not None and high - low > abs(value)


def measured(
    value: float, low: float | None, high: float | None, form: str = ".3f", before: str = "", after: str = ""
) -> str:
    """A measured quantity with its interval and its unit, or "not shown".

    >>> measured(64.0, 50.0, 78.0, ".0f", after=" %"), measured(1.25, None, None, ".2f", "×")
    ('64 [50 to 78] %', '×1.25')
    """
    if too_wide(value, low, high):
        return "not shown (interval wider than the value)"
    return f"{before}{with_span(value, low, high, form)}{after}"


def with_span(value: float | None, low: float | None, high: float | None, form: str = ".3f") -> str:
    """A value with its interval, if there are any: '1.051 [1.020 to 1.083]', '1.25', ''."""
    if value is None:
        return ""
    return f"{value:{form}}" + ("" if low is None else f" [{span(low, high, form)}]")


def sequence(looks: list[int], limit_minutes: float | None) -> str:
    """The stopping rule of ROUNDS=auto, and the level of its intervals."""
    level = 100 * formulas.confidence_per_look(0.95, len(looks))
    limit = f", at most {limit_minutes:g} min" if limit_minutes else ""
    return (
        f"rounds until every pair has a verdict, interim analyses after {', '.join(map(str, looks))}{limit}; "
        f"intervals of {level:g} %: 95 % over all analyses"
    )


def grouped(values: dict[str, str]) -> str:
    """Values with their programs; a common value is given without them.

    >>> grouped({"dp": "2", "ddp": "2"}), grouped({"dp": "1", "ddp": "2", "horovod": "2"})
    ('2', 'dp: 1; ddp, horovod: 2')
    """
    groups = {}
    for program, value in values.items():
        groups.setdefault(value, []).append(program)
    return next(iter(groups)) if len(groups) == 1 else "; ".join(f"{', '.join(p)}: {v}" for v, p in groups.items())
