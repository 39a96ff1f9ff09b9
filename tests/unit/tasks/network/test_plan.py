"""SIZES, and what is told to the ranks."""

import pytest

from bench.errors import UserError
from bench.tasks.network.plan import SIZES, Plan, as_flag, parse_sizes, read_plan


def test_the_range_that_is_measured_by_default():
    sizes = parse_sizes(SIZES)
    assert (sizes[0], sizes[-1], len(sizes)) == (4 * 2**10, 256 * 2**20, 9)


@pytest.mark.parametrize("text", [SIZES, "8,12KiB", "4KiB,16KiB,64KiB,100KiB", "4KiB-100KiB", "1GiB"])
def test_sizes_are_written_as_they_are_read(text):
    assert parse_sizes(as_flag(parse_sizes(text))) == parse_sizes(text)


@pytest.mark.parametrize(("text", "said"), [
    ("", "is no size"), ("4KiB,", "is no size"), ("4 kilobytes", "is no size"), ("-4", "is no size"),
    ("1e6", "is no size"), ("6", "a multiple of 4"), ("0", "from 4 B"), ("9GiB", "to 8 GiB"),
    ("1MiB-4KiB", "the larger one"),
    (",".join(str(4 * n) for n in range(1, 50)), "at most 40 sizes"),
])  # fmt: skip
def test_sizes_that_make_no_sense_are_refused_in_one_line(text, said):
    with pytest.raises(UserError, match=said) as error:
        parse_sizes(text)
    assert "SIZES" in str(error.value) and "\n" not in str(error.value)


def test_a_plan_arrives_as_it_was():
    plan = Plan((4, 4096), 7, 12.5, "horovod")
    assert read_plan(plan.text()) == plan
