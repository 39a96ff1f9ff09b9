"""Figures in words, the same in every table and on the page."""

COMPILE_NOTE = (
    "torch.compile works during the first untimed step, a minute on a small CPU, and later rounds find its work in a "
    "cache: no timed step has any of it."
)


def span(low: float | None, high: float | None, form: str = ".3f") -> str:
    """An interval. low, high: None where there is none.

    >>> span(0.95, 1.05), span(None, None), span(1.4, 1.6, ".2f")
    ('0.950 to 1.050', 'no interval', '1.40 to 1.60')
    """
    return "no interval" if low is None else f"{low:{form}} to {high:{form}}"


def with_span(value: float | None, low: float | None, high: float | None, form: str = ".3f") -> str:
    """A value with its interval, as far as there are any.

    >>> with_span(1.0512, 1.0203, 1.083), with_span(1.25, None, None, ".2f"), with_span(None, None, None)
    ('1.051 [1.020 to 1.083]', '1.25', '')
    """
    if value is None:
        return ""
    return f"{value:{form}}" + ("" if low is None else f" [{span(low, high, form)}]")


def grouped(values: dict[str, str]) -> str:
    """Values with the roles that have them; a value that all have stands alone.

    >>> grouped({"dp": "2", "ddp": "2"}), grouped({"dp": "1", "ddp": "2", "horovod": "2"})
    ('2', 'dp: 1; ddp, horovod: 2')
    """
    roles = {}
    for role, value in values.items():
        roles.setdefault(value, []).append(role)
    return next(iter(roles)) if len(roles) == 1 else "; ".join(f"{', '.join(r)}: {v}" for v, r in roles.items())
