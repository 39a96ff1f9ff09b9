"""A checkpoint that is read and not loaded: ``start = torch.load(path)["epoch"]``; ``model.state_dict = weights``."""

from bench.mistakes.base import Mistake, Question


def detect(observed: dict) -> str | Question | None:
    seen = observed.get("unloaded") or {}
    if seen.get("assigned"):
        return f"{seen['assigned']}.state_dict is no method any more: something was assigned to it, and nothing loaded"
    for each in seen.get("files", []):
        return Question(
            f"{each['file']} was read, and {each['keys']} of its tensors have the names of the model's; before the "
            "first step the model has none of their values",
            "is the file read for something else than its weights?",
        )
    return None


MISTAKE = Mistake(
    "weights-not-loaded",
    "a checkpoint that is read and not loaded",
    "the training goes on from the checkpoint's epoch, or from its learning rate, with weights that were drawn anew",
    'call model.load_state_dict(checkpoint["model"]), which is a method: model.state_dict = … replaces it and loads '
    "nothing; load before the epochs go on",
    detect,
    needs="unloaded",
    watched=True,
)
