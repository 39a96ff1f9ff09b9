from bench.mistakes.base import Evidence, mistake


@mistake(
    "a model validated in training mode",
    "dropout is active, and batch norm normalises by each batch: the metric depends on the batch size and the order; "
    "the running statistics include the validation set, also in the saved model",
    "call model.eval() before the validation and model.train() after it; torch.no_grad() does neither",
    needs="eval_mode",
    case="wrong/eval_forgotten",
)
def no_eval(observed: dict) -> Evidence | None:
    seen = observed.get("eval_mode") or {}
    if not seen.get("in_training_mode"):
        return None
    layers = ", ".join(f"{kind} × {count}" for kind, count in sorted(seen["layers"].items()))
    return Evidence(
        f"{seen['in_training_mode']} of {seen['validations']} validations ran with {layers} in training mode",
        "is this intended, e.g. to re-estimate batch norm's statistics or to sample dropout?",
    )
