from bench.mistakes.base import Evidence, mistake

MIB = 2**20


FEWEST = 8 * MIB  # of growth; less may come from allocators


SHARE = 0.02  # of the memory in use: likewise


@mistake(
    "memory that grows with every step",
    "the process runs out of memory when it trains long enough",
    "keep numbers, not tensors with a graph: loss.item() or loss.detach(), outputs.detach(); clear lists at the end of "
    "each epoch; do not pass retain_graph=True without need",
    needs="memory",
    case="wrong/memory_outputs_kept",
)
def memory_growth(observed: dict) -> Evidence | None:
    """Losses, outputs or hidden states that are kept with their graphs; for the rank whose memory grew most."""
    memory = observed.get("memory") or {}
    grown = [(used[1] - used[0], used, steps) for used, steps, steadily
             in zip(memory.get("bytes", []), memory.get("steps", []), memory.get("steadily", []), strict=True)
             if steadily and used[1] - used[0] >= max(FEWEST, SHARE * used[0])]  # fmt: skip
    if not grown:
        return None
    more, (before, after), (first, last) = max(grown)
    return Evidence(
        f"{memory['place'][0]} memory grew steadily by {more / MIB / (last - first):.3g} MiB per optimizer step, from "
        f"{before / MIB:.0f} MiB at step {first} to {after / MIB:.0f} MiB at step {last}",
        "is memory filled on purpose, e.g. by a cache or a replay buffer?",
    )
