"""Several processes were started, and none has joined a group: every one trains alone."""

from bench.mistakes.base import Mistake


def detect(observed: dict) -> str | None:
    group = observed.get("group") or {}
    if group.get("joined", True) or not group.get("launched"):
        return None
    started = group["launched"]
    return f"{started['variable']} is {started['processes']}, and this process has joined no group"


MISTAKE = Mistake(
    "no-group",
    "several processes, and no process group joined",
    "every process trains the whole task alone, and writes the same files",
    "call dist.init_process_group or hvd.init before the model is wrapped, or start one process",
    detect,
    needs="group",
    watched=True,
    explains=("lost-remainder", "lr-not-scaled", "many-writers"),
)
