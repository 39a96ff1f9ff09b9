from bench.mistakes.base import Lab, Requirement, mistake
from bench.mistakes.measures import METRIC, Measure, of_epoch


def model_of_prefixed_weights(script, num_outputs: int, say):
    """A PRETRAINED file without prefixes is read as if saved from ``ddp_model.state_dict()``: no key is the model's."""
    model = script.fresh_model(num_outputs, say)
    weights = script.read_weights(script.config.pretrained)
    model.load_state_dict({f"module.{key}": value for key, value in weights.items()}, strict=False)
    return model


def filled(record, observed) -> float | None:
    loads = observed.get("loads")
    if not loads or not loads[0]:
        return None
    load = loads[0][0]
    placed = load["keys"] - load["unexpected"]
    return 100 * placed / max(1, placed + load["missing"])


@mistake(
    "a checkpoint loaded with strict=False, its keys prefixed with module.",
    "no key matches, nothing is loaded, and there is no error: training begins from random weights",
    "load strictly; save model.module.state_dict(), or strip the prefix",
    needs="loads",
    overrides={"build_model": model_of_prefixed_weights},
    requires=(Requirement("PRETRAINED, a file", lambda c: c.pretrained not in (None, "torchvision")),),
    lab=Lab(
        "What is left of pretrained weights whose names have a prefix?",
        "The first epoch begins with the loss of random weights, although a checkpoint was given, without an error.",
        (
            Measure("training loss, first epoch", of_epoch("train_loss", 0), "up", ".3f"),
            Measure("% of the model's tensors that the file filled", filled, form=".1f"),
            METRIC,
        ),
        workload={"epochs": 1},
        changes=("initial weights",),
        pretrains=True,
    ),
    case="wrong/strict_module_prefix",
)
def strict_false(observed: dict) -> str | None:
    """A new head, or a part of a larger file that fills most of the model, is not a finding."""
    for load in (load for rank in observed.get("loads", []) for load in rank):
        placed = load["keys"] - load["unexpected"]
        fewer = 2 * placed < min(load["keys"], placed + load["missing"])  # than half of the file's and of the model's
        if not load["strict"] and load["missing"] and (load["prefix"] or fewer):
            prefix = f"; the names differ by the prefix {load['prefix']}" if load["prefix"] else ""
            how = "picked by name and loaded" if load.get("picked") else "loaded with strict=False"
            return (
                f"{load['file'] or 'a state dict'} {how}: {placed} of {load['keys']} keys matched, "
                f"and {load['missing']} of the model's were not loaded{prefix}"
            )
    return None
