from bench.mistakes.base import Evidence, mistake

SHORT, LONG = 0.9, 1.1  # of a schedule's length: fewer or more steps are a possible mistake


OFTEN = 1.5  # schedule steps per optimizer step; from here on they are too many


ZEROS = 0.05  # share of the optimizer steps with a learning rate of 0; from here on it is a possible mistake


ASKS = "does the training intentionally end before its schedule, or continue after it?"


TRENDS = {
    "falls": "the learning rate is still falling after {steps} optimizer steps, at {end} of its peak",
    "rises": "the learning rate is still rising after {steps} optimizer steps",
    "again": "the learning rate fell to 0 and rose again, to {end} of its peak after {steps} optimizer steps",
}


def length_mismatch(schedule: dict, steps: int) -> str | None:
    """How a scheduler's steps differ from its length. steps: of the optimizer."""
    kind, length, taken, here = (schedule[key] for key in ("kind", "length", "taken", "here"))
    short = length is not None and taken + 1 < SHORT * length
    if short or (schedule["ends"] and taken > LONG * length + 1):
        return f"{kind} has a length of {length:.0f} steps but was stepped {taken:.0f} times"
    if not schedule["ends"] and here and here >= OFTEN * steps:
        return f"{kind} was stepped {here:.0f} times in {steps} optimizer steps"
    return None


@mistake(
    "a learning-rate schedule whose length differs from the training's",
    "the learning rate does not anneal, or the training continues with an unintended rate",
    "make the schedule for the optimizer steps that one rank takes (epochs × len(loader) with the DistributedSampler, "
    "over the passes of an accumulation), and step it once per optimizer step, or once per epoch if it counts epochs",
    needs="schedules",
    case="wrong/schedule_of_one_device",
)
def schedule_length(observed: dict) -> Evidence | None:
    """E.g. a schedule made for the steps of one device, stepped once per rank, or ``T_max`` in epochs."""
    for curve in observed.get("schedules") or []:
        if curve["peak"] and curve["last"] is not None:
            end = f"{100 * curve['last'] / curve['peak']:.3g} %"
            found = [words for each in curve["schedulers"] if (words := length_mismatch(each, curve["steps"]))]
            if curve["trend"]:
                found.append(TRENDS[curve["trend"]].format(steps=curve["steps"], end=end))
            elif found:
                found.append(f"the last learning rate is {end} of the highest")
            if curve["zeros"] > 1 and curve["zeros"] > ZEROS * curve["steps"]:
                found.append(f"the learning rate is 0 in {curve['zeros']} of {curve['steps']} optimizer steps")
            if found:
                return Evidence("; ".join(found), ASKS)
    return None
