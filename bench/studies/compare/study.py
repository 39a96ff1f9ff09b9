"""All modes on one workload, or named configurations: which is fastest here, by how much, and how certain is that?"""

from collections.abc import Iterator

from bench.analysis.certificate import Rules, program
from bench.analysis.suite import CHOSEN
from bench.config.combined import READ, is_part
from bench.config.command_line import parse_value
from bench.config.fields import variable_of
from bench.config.flags import SWITCH
from bench.config.modes import COMPARED, MODES, UPPER_BOUNDS
from bench.config.options import FIELDS, RunConfig
from bench.errors import UserError
from bench.launch.engines import unavailable_reason
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import bounds_of, even_threads, in_mode, label_of, prepare_modes, refuse
from bench.studies.replay import study as replay

STUDIED = "the configurations were chosen to differ in it"
RULES = Rules({"gradient compression": (STUDIED, program), "buffers": (STUDIED, program)})


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    """One suite; with REPLAY=<name> that of the replay."""
    if flags.replay is not None and flags.modes is not None:
        raise UserError("REPLAY and MODES exclude each other: a replay defines its own configurations")
    if flags.replay is not None:
        yield from replay.plans(console, asked, flags)
        return
    refuse(asked, "mode")
    wanted = None if flags.modes is None else read_programs(flags.modes)
    config, modes = prepare_modes(console, asked, COMPARED if wanted is None else [mode for mode, _ in wanted])
    yield Plan(COMPARE, programs(config, modes) if wanted is None else chosen(config, modes, wanted))


def programs(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Every mode on the same global batches, single first; on a CPU the baseline too. config: resolved."""
    config = even_threads(config)
    return {mode: in_mode(config, mode) for mode in [*modes, *bounds_of(config)]}


def chosen(config: RunConfig, modes: list[str], wanted: list[tuple[str, dict]]) -> dict[str, RunConfig]:
    """The programs in ``wanted`` that can run here. Raises UserError when options exclude each other."""
    config = even_threads(config).labelled(variant=CHOSEN)
    found = {
        label_of(mode, point): in_mode(config, mode, **point)
        for mode, point in wanted
        if mode in modes or MODES[mode].baseline
    }
    for each in found.values():
        if why := unavailable_reason(each):
            raise UserError(f"MODE={each.mode} {why}")
    return found


def read_programs(text: str) -> list[tuple[str, dict]]:
    """MODES: modes with commas between, each with options of its backend. Raises UserError for anything else.

    >>> read_programs("ddp,horovod:FUSION_MB=16:OVERLAP=0")
    [('ddp', {}), ('horovod', {'fusion_mb': 16.0, 'overlap': False})]
    """
    found = []
    for words in text.split(","):
        mode, *options = words.strip().split(":")
        if mode not in MODES:
            raise UserError(f"MODES={text}: no mode {mode!r}: choose from {', '.join(MODES)}, as in ddp,horovod")
        point = {}
        for name, _, value in (option.partition("=") for option in options):
            knobs = MODES[mode].knobs
            if name == variable_of(FIELDS["mistake"]) and (parts := READ["mistake"](value)).keys() <= knobs.keys():
                point |= parts
                continue
            if name.lower() not in knobs or is_part(FIELDS[name.lower()]):
                able = ", ".join(dict.fromkeys(variable_of(FIELDS[knob]) for knob in knobs)) or "none"
                raise UserError(f"MODES={text}: {name!r} is not an option of MODE={mode}: use one of {able}; "
                                "options of all configurations go outside MODES")  # fmt: skip
            point[name.lower()] = parse_value(FIELDS[name.lower()], value)
        if (mode, point) in found:
            raise UserError(f"MODES={text} names {words.strip()} twice")
        found.append((mode, point))
    if len(found) < 2:
        raise UserError(f"MODES={text}: a comparison needs at least two configurations, as in ddp,ddp:COMPRESSION=fp16")
    return found


COMPARE = Study(
    "compare", "compare", "Comparison", "Which mode is fastest here, by how much, and how sure is that?",
    "single, dp, ddp, horovod (or MODES=…) in interleaved rounds: which is faster, and was it fair?", plans,
    example="GPUS=2 [ROUNDS=8|auto QUICK=1 STRICT=1 REPLAY=dp-workers|… MODES=ddp,fsdp]",
    flags={
        "--strict": SWITCH | {"help": "refuse an unfair comparison"},
        "--replay": {"help": f"compare unfairly on purpose: {', '.join(replay.REPLAYS)}"},
        "--modes": {"help": "configurations: modes, each with its backend options, as in ddp,ddp:COMPRESSION=fp16,fsdp "
                            f"[{','.join([*COMPARED, *UPPER_BOUNDS])}]"},
    },
    rounds=8, enough=8, named_by="MODES", auto=True, partial="memory",
)  # fmt: skip
STUDIES = (COMPARE,)
