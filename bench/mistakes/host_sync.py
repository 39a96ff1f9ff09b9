from bench.mistakes.base import Evidence, Lab, mistake
from bench.mistakes.measures import SPEED, Measure


def waits_per_step(record, observed) -> float | None:
    found = observed.get("host_syncs")
    return None if found is None else sum(line["per_step"] for line in found)


WAITS = Measure("waits of the host for the device per step", waits_per_step, "up")


@mistake(
    "the host waits for the device every step",
    "loss.item() empties the device's queue: the next step is prepared while the device idles",
    "keep the sum on the device, and read it once per epoch or every hundred steps",
    needs="host_syncs",
    switch={"item_sync": True},
    lab=Lab(
        "How often does the host wait for the device?",
        "On a GPU: steps take longer, and its load has gaps. On a CPU the device is the host, and nothing is lost.",
        (WAITS, SPEED),
        on_gpu=(SPEED.expected("down"), WAITS),
        workload={"epochs": 0, "timed_steps": 20, "per_device_batch": 32},
        changes=("extra work per step",),
    ),
    case="wrong/sync_running_loss",
)
def host_sync(observed: dict) -> str | Evidence | None:
    """Lines of the script that wait for the device in at least every other step. A CPU does not wait for itself."""
    lines = [entry for entry in observed.get("host_syncs", []) if entry["per_step"] >= 0.5]
    if not lines:
        return None
    named = ", ".join(f"{entry['where']} ({entry['per_step']:.3g} a step)" for entry in lines[:3])
    if observed.get("device") != "cpu":
        return f"the host waits for the device at {named}"
    return Evidence(
        f"on a GPU the host would wait for the device at {named}", "is this script never used on a GPU?",
        "the host waits for the device every step if it is a GPU",
        "a GPU would stall: its queue is emptied, and it idles until the next step is prepared; on a CPU there is no "
        "cost",
    )  # fmt: skip
