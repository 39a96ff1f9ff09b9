from bench.mistakes.base import Evidence, mistake


@mistake(
    "a checkpoint that is read and not loaded",
    "the training continues from the checkpoint's epoch, or from its learning rate, with new random weights",
    'call model.load_state_dict(checkpoint["model"]), which is a method: model.state_dict = … replaces it and loads '
    "nothing; load before the epochs continue",
    needs="unloaded",
    case="wrong/weights_assigned",
)
def weights_not_loaded(observed: dict) -> str | Evidence | None:
    """E.g. only ``start = torch.load(path)["epoch"]``, or ``model.state_dict = weights``."""
    seen = observed.get("unloaded") or {}
    if seen.get("assigned"):
        return f"{seen['assigned']}.state_dict is no longer a method: something was assigned to it, and nothing loaded"
    for each in seen.get("files", []):
        return Evidence(
            f"{each['file']} was read, and {each['keys']} of its tensors have names of the model's; but before the "
            "first step the model has none of their values",
            "is the file read for something other than its weights?",
        )
    return None
