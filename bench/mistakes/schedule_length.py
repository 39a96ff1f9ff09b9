from bench.mistakes.base import Evidence, mistake

SHORT, LONG = 0.9, 1.1  # of a schedule's length: what it is stepped less or more than that is a question


OFTEN = 1.5  # steps of a schedule per optimizer step, from where on they are too many


ZEROS = 0.05  # share of the optimizer steps with a learning rate of 0, from where on it is a question


ASKS = "does the training end before its schedule, or continue after it, on purpose?"


TRENDS = {
    "falls": "after {steps} optimizer steps the learning rate still falls, at {end} of its peak",
    "rises": "after {steps} optimizer steps the learning rate still rises",
    "again": "the learning rate has fallen to 0 and risen again, to {end} of its peak after {steps} optimizer steps",
}


def misfit(schedule: dict, steps: int) -> str | None:
    """How a scheduler is stepped differently from what it is made for. steps: of the optimizer."""
    kind, length, taken, here = (schedule[key] for key in ("kind", "length", "taken", "here"))
    short = length is not None and taken + 1 < SHORT * length
    if short or (schedule["ends"] and taken > LONG * length + 1):
        return f"{kind} is made for {length:.0f} steps and was stepped {taken:.0f} times"
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
    """As a schedule made for the steps of one device, stepped once per rank, or ``T_max`` in epochs."""
    for curve in observed.get("schedules") or []:
        if curve["peak"] and curve["last"] is not None:
            end = f"{100 * curve['last'] / curve['peak']:.3g} %"
            found = [words for each in curve["schedulers"] if (words := misfit(each, curve["steps"]))]
            if curve["trend"]:
                found.append(TRENDS[curve["trend"]].format(steps=curve["steps"], end=end))
            elif found:
                found.append(f"the last learning rate is {end} of the highest")
            if curve["zeros"] > 1 and curve["zeros"] > ZEROS * curve["steps"]:
                found.append(f"the learning rate is 0 in {curve['zeros']} of {curve['steps']} optimizer steps")
            if found:
                return Evidence("; ".join(found), ASKS)
    return None
