"""What the ranks of `bench infer` are told, and the columns of their table."""

from bench.config.options import RunConfig
from bench.tasks.inference.rank import Plan, head, read_plan


def test_a_plan_is_read_again_and_tells_the_errand():
    plan = Plan("folder", "latest.pt", "cifar10", 3, ("a", "b", "c"))
    config = RunConfig().labelled(probe=plan.text())
    assert read_plan(plan.text()) == plan and (config.task, config.leaves) == ("predict", "predictions.csv")
    assert (RunConfig().task, RunConfig().leaves) == ("train", "record.json")


def test_the_columns_are_as_many_as_there_are_classes_and_five_at_the_most():
    assert head(1) == ["name", "class", "probability", "error"]
    assert len(head(1000)) == 2 + 2 * 5 and head(1000)[-3:] == ["class_5", "probability_5", "error"]
