from bench.mistakes.base import mistake


@mistake(
    "several processes, and no process group joined",
    "every process trains the whole task by itself, and writes the same files",
    "call dist.init_process_group or hvd.init before the model is wrapped, or start one process",
    needs="group",
    explains=("lost-remainder", "lr-not-scaled", "many-writers"),
    case="wrong/group_never_joined",
)
def no_group(observed: dict) -> str | None:
    group = observed.get("group") or {}
    if group.get("joined", True) or not group.get("launched"):
        return None
    started = group["launched"]
    return f"{started['variable']} is {started['processes']}, but this process has not joined a process group"
