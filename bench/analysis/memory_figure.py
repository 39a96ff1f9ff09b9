"""Memory of each device by source: a stacked bar per device of each mode, and the memory over time.

On a GPU a bar is divided by differences of peaks that were reached at different moments: tensors, the rest of torch's
allocator, the rest of the process (CUDA context, libraries, NCCL), the rest of the device. Nothing is summed over
devices. On a CPU the memory is the host's: PSS, one bar per process.
"""

from bench.analysis import style
from bench.config.modes import PlotStyle
from bench.record.describe import MEMORY_ORDER
from bench.record.view import Record

BAR, GAP = 0.27, 0.16  # inches: a bar, and the space between two programs
PANEL = 0.95  # inches, of memory over time

# The parts of a GPU's bar: (name, source of the peak up to which it reaches, look).
PARTS = (
    ("torch allocated (tensors)", "torch_allocated", PlotStyle(style.BLUE, "")),
    ("torch reserved, unused", "torch_reserved", PlotStyle(style.SKY, "///")),
    ("rest of the process (context, libraries)", "nvml_process", PlotStyle(style.ORANGE, "...")),
    ("rest of the device (others, driver)", "nvml_device", PlotStyle(style.PALE, "xxx")),
)
HOST_PARTS = tuple(
    (f"{source.upper()} of a process and its loader workers", source, PlotStyle(style.BLUE, ""))
    for source in ("pss", "uss", "rss")
)
HIGH_WATER = "rss_hwm"
COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILION, style.SKY, style.BLACK, style.GREY)
ON_HOST = (
    "No GPU: host memory. PSS is sampled; a page shared by n processes counts 1/n in each. A process with several "
    "replicas has one bar."
)
ON_GPU = (
    "Peaks: torch's values are exact, NVML's are sampled. A part is the difference between two peaks, which may have "
    "been reached at different times. Each device has its own bar: nothing is summed or averaged over devices."
)


@style.styled
def draw(result):
    """A stacked bar for each device of each program: of each source, the highest peak of all rounds."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    suite, on_gpu = result.suite, result.suite.device == "cuda"
    bars = {program.label: devices_of(program.records) for program in suite.programs.values()}
    known = [peaks for devices in bars.values() for peaks in devices.values()]
    parts = [p for p in (PARTS if on_gpu else HOST_PARTS) if any(peaks[p[1]] is not None for peaks in known)]
    more = [ON_GPU if on_gpu else ON_HOST]
    if on_gpu and (missing := [source for _, source, _ in PARTS if source not in {part[1] for part in parts}]):
        more.append(f"Unknown on this machine: {', '.join(missing)}.")
    title = "Peak memory of each device" if on_gpu else "Peak memory of each process (host)"
    height = BAR * len(known) + GAP * len(bars)
    figure, (axes,) = style.panels(result, title, [height], 0.72 + 0.2 * len(parts), more)
    ticks, y = {}, 0.0
    for label, devices in bars.items():
        for i, (device, peaks) in enumerate(devices.items()):
            draw_bar(axes, y, peaks, parts)
            ticks[y] = f"{label}  {device}" if i == 0 else device
            y += BAR
        y += GAP
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(y - GAP - BAR / 2 + 0.04, -BAR / 2 - 0.04)
    axes.tick_params(axis="y", length=0, labelsize=style.SMALL + 0.5)
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    style.finish(axes, "GiB")
    shown = [Patch(facecolor=look.colour, edgecolor="black", hatch=look.hatch, label=name) for name, _, look in parts]
    if any(peaks[HIGH_WATER] is not None for peaks in known):
        label = "peak RSS (shared pages counted in full)"
        shown.append(Line2D([], [], color=style.VERMILION, linewidth=2.2, label=label))
    style.legend_above(axes, 1, shown)
    return figure


def devices_of(records: list[Record]) -> dict[str, dict]:
    """A device, with its process where several have its name -> its peaks in GiB, the highest of all rounds."""
    found = {}
    for record in records:
        peaks = record.peak_memory
        names = [device["device"] for device in peaks]
        for device in peaks:
            label = device["device"]
            if label == "cpu":
                label = f"process {device['rank']}"
            elif names.count(label) > 1:
                label = f"{label} process {device['rank']}"
            if "node" in device:
                label = f"{record.nodes[device['node']].name} {label}"
            into = found.setdefault(label, {})
            for source in (*MEMORY_ORDER, HIGH_WATER):
                values = [x for x in (into.get(source), device.get(source)) if x is not None]
                into[source] = max(values, default=None)
    return found


def draw_bar(axes, y: float, peaks: dict, parts: list) -> None:
    left = 0.0
    for _, source, look in parts:
        value = peaks.get(source)
        if value is not None and value > left:
            axes.barh(y, value - left, BAR * 0.82, left, facecolor=look.colour, edgecolor="black", linewidth=0.7,
                      hatch=look.hatch)  # fmt: skip
            left = value
    text, high = (f"{left:.2f}" if left else "not known"), peaks.get(HIGH_WATER)
    options = {"textcoords": "offset points", "va": "center_baseline", "size": style.SMALL}
    if high is None or not left:
        axes.annotate(text, (left, y), (5, 0), **options)
        return
    axes.annotate(text, (left, y), (-5, 0), ha="right", color="white", weight="bold", **options)
    axes.plot([high, high], [y - BAR * 0.41, y + BAR * 0.41], color=style.VERMILION, linewidth=2.2)
    axes.annotate(f"{high:.2f}", (max(left, high), y), (5, 0), color=style.VERMILION, **options)


@style.styled
def draw_over_time(result):
    firsts = {program.label: program.first for program in result.suite.programs.values()}
    source = source_of(firsts.values())
    key = f"Memory: {source or 'not recorded'}, in the first round. Shaded: the timed steps."
    heights = [PANEL] * len(firsts)
    figure, panels = style.panels(result, "Memory over time", heights, 0.95, [key], sharex=True, sharey=True)
    lines, tops = {}, []
    for axes, (program, record) in zip(panels, firsts.items(), strict=True):
        for i, (label, device) in enumerate(timelines(record)):
            line = draw_line(axes, device, f"{source}_gib", i)
            if line is not None:
                lines.setdefault(label, line)
                tops.append(max(line.get_ydata()))
        axes.annotate(program, (0.01, 0.97), xycoords="axes fraction", va="top", weight="bold", size=style.TEXT,
                      bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1})  # fmt: skip
        style.finish(axes, grid="y")
    panels[0].set_ylim(0, 1.45 * max([*tops, 1e-3]))  # room for the names
    figure.supylabel("GiB", size=style.TEXT)
    panels[-1].set_xlabel("seconds since the process initialised its device")
    if lines:
        panels[0].legend(list(lines.values()), list(lines), loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4,
                         borderaxespad=0.2, columnspacing=1.2)  # fmt: skip
    return figure


def source_of(records) -> str | None:
    devices = [device for record in records for _, device in timelines(record)]
    for source in MEMORY_ORDER:
        if devices and all(any(x is not None for x in d["timeline"].get(f"{source}_gib", [])) for d in devices):
            return source
    return None


def timelines(record: Record) -> list[tuple[str, dict]]:
    devices = [(part, device) for part in record.samples for device in part.devices]
    found = []
    for place, (part, device) in enumerate(devices):
        node = f"{record.nodes[part.node].name} " if record.several_machines else ""
        found.append((node + (f"device {place}" if record.on_gpu else f"process {part.rank}"), device))
    return found


def draw_line(axes, device: dict, column: str, i: int):
    """A column of a device's samples over time; None if it has none. The first device's timed steps are shaded."""
    timeline, marks = device["timeline"], device.get("marks", {})
    if i == 0 and "timed" in marks and "end" in marks:
        axes.axvspan(marks["timed"], marks["end"], color=style.PALE, alpha=0.6, linewidth=0)
    points = [(t, v) for t, v in zip(timeline["time_s"], timeline.get(column, ()), strict=False) if v is not None]
    if not points:
        return None
    (line,) = axes.plot(*zip(*points, strict=True), color=COLOURS[i % len(COLOURS)], marker="o^sDvPX*"[i % 8],
                        linestyle=style.LINES[i % len(style.LINES)], markersize=3.5, linewidth=max(1.0, 3.4 - 0.8 * i),
                        markevery=max(1, len(points) // 12))  # fmt: skip
    return line
