"""A map of the fastest mode over the rate of the links and the computation per byte of gradients.

Only these two are scaled; number of devices, gradients and latency stay. Of modes whose median steps are within 2 % the
simplest wins, and a single device is the simplest.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass

from bench import formulas
from bench.analysis import style
from bench.cluster.plan import rate_words
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.predict.advice.cluster import TIE, candidates
from bench.predict.advice.facts import FP16, Way
from bench.predict.pictures.points import Asked
from bench.predict.step.engines import ENGINES
from bench.predict.step.link import BYTE, Link
from bench.predict.step.profile import Profile

BODY = 4.6  # inches
ALONE = "only one device"
RATES, COMPUTED = (1.0, 5.0), (-0.5, 2.5)  # powers of ten: Mbit/s of a link; ms of computation per MB of gradients
CELLS = 36  # in each direction
CELL = 0.1  # inches, roughly
LEAST = 2  # cells around the middle of a region that has room for its name
SOLID, FAINT = 0.9, 0.35  # share of a mode's colour, the rest white: plain, and with float16 gradients
ALONG = -45  # degrees: regions go from the slow device with a slow link to the fast one with a fast link
MARKS, EDGE = "osD^vP", "#404040"
FOOT = (
    "Computation per MB of gradients: step time on one device divided by the size of the gradients. More images per "
    "device, or a slower device: further up. Dashed: an all-reduce of all gradients takes as long as that step.",
    f"If steps are equal within {100 * TIE:g} %, the simplest mode wins. fp16: gradients are sent as float16. "
    "PowerSGD is not included, because its computation cannot be forecast.",
)


@dataclass(frozen=True)
class Place:
    name: str
    profile: Profile
    link: Link

    @property
    def at(self) -> tuple[float, float]:
        """On the map, in powers of ten: Mbit/s, ms per MB."""
        return math.log10(rate_of(self.link)), math.log10(per_mb(self.profile))


def rate_of(link: Link) -> float:
    return link.rate_mbit or BYTE / link.beta_s


def per_mb(profile: Profile) -> float:
    return 1e3 * profile.step_s / (1e-6 * profile.nbytes)


def at_rate(link: Link, mbit: float) -> Link:
    return dataclasses.replace(link, beta_s=link.beta_s * rate_of(link) / mbit, rate_mbit=mbit)


def ways_of(configs: dict[str, RunConfig]) -> list[Way]:
    ways = [Way(config.mode + (f", {config.compression}" if config.compression != "none" else ""), config, [])
            for config in candidates(list(configs.values()))]  # fmt: skip
    return sorted(ways, key=lambda way: way.rank)


def winner(place: Place, ways: list[Way], ranks: int) -> str:
    steps = [ENGINES[way.config.mode](place.profile, way.config, ranks, place.link).seconds for way in ways]
    best = min(steps)
    if ranks * place.profile.step_s <= best * (1 + TIE):
        return ALONE
    return next(way.label for way, seconds in zip(ways, steps, strict=True) if seconds <= best * (1 + TIE))


def mapped(asked: Asked, ways: list[Way], ranks: int) -> list[list[str]]:
    """The winner in the middle of each cell: rows from the least computation, columns from the slowest link."""
    rates, computed = middles(RATES), middles(COMPUTED)
    own = per_mb(asked.profile)
    links = [at_rate(asked.link, 10**rate) for rate in rates]
    profiles = [asked.profile.slower(10**each / own) for each in computed]
    return [[winner(Place("", profile, link), ways, ranks) for link in links] for profile in profiles]


def middles(ends: tuple[float, float]) -> list[float]:
    size = (ends[1] - ends[0]) / CELLS
    return [ends[0] + size * (cell + 0.5) for cell in range(CELLS)]


@style.styled
def draw(asked: Asked, ranks: int, others: list[Place] = ()):
    """others: places of the same machine to mark beside the forecast's own."""
    from matplotlib.patches import Patch

    own = Place(asked.record.config.model, asked.profile, asked.link)
    places = list({(each.name, rate_of(each.link)): each for each in [*others, own]}.values())
    ways = ways_of(asked.configs)
    looks = looks_of(ways)
    marks = "Mark: the profile, filled like the mode that wins."
    if len(places) > 1:
        marks = ("Marks: profiles of this machine, over the links with which they were emulated, each filled like the "
                 "mode that wins in its own forecast.")  # fmt: skip
    title = f"Which mode wins on {ranks} devices, predicted"
    paper = style.canvas(None, title, BODY, None, (*FOOT, marks, *asked.provenance_lines()))
    (axes,) = style.axes_on(paper)
    cells = mapped(asked, ways, ranks)
    unnamed = draw_regions(axes, cells, looks, [cell_of(place) for place in places])
    if ranks > 1:
        draw_equal(axes, asked, ranks)
    draw_places(axes, places, {place: winner(place, ways, ranks) for place in places}, looks)
    regions = [Patch(edgecolor=EDGE, linewidth=0.5, label=label, **looks[label]) for label in unnamed]
    style.legend_above(axes, 4, [*axes.get_legend_handles_labels()[0], *regions])
    axes.set(xlim=RATES, ylim=COMPUTED, xlabel="rate of each device's link")
    axes.set_ylabel("computation per MB of gradients, ms")
    axes.set_xticks(range(1, 6), [rate_words(10**power) for power in range(1, 6)])
    axes.set_yticks([0, 1, 2], ["1", "10", "100"])
    return paper.figure


def looks_of(ways: list[Way]) -> dict[str, dict]:
    """How each region is filled: in its mode's colour, paler and hatched with float16 gradients."""
    from matplotlib.colors import to_rgb

    found = {ALONE: {"facecolor": style.WHITE}}
    for way in ways:
        colour, halved = MODES[way.config.mode].look.colour, way.config.compression == FP16["compression"]
        share = FAINT if halved else SOLID
        found[way.label] = {"facecolor": tuple(1 - share * (1 - part) for part in to_rgb(colour))}
        found[way.label] |= {"hatch": "///"} if halved else {}
    return found


def draw_regions(axes, cells: list[list[str]], looks: dict[str, dict], marks: list[tuple[int, int]]) -> list[str]:
    """Bars of each row, and each region's name in its middle, away from the marks. Returns the names without room."""
    wide, high = (RATES[1] - RATES[0]) / CELLS, (COMPUTED[1] - COMPUTED[0]) / CELLS
    for number, row in enumerate(cells):
        left = RATES[0]
        for label, same in itertools.groupby(row):
            width = wide * len(list(same))
            axes.barh(COMPUTED[0] + high * number, width, high, left, align="edge", edgecolor=EDGE, linewidth=0,
                      **looks[label])  # fmt: skip
            left += width
    rates, computed, unnamed = middles(RATES), middles(COMPUTED), []
    for label in dict.fromkeys(itertools.chain.from_iterable(cells)):
        reach = style.width_of(label, style.SMALL, "normal") / 2 * math.sin(math.radians(-ALONG))  # along either axis
        row, column, size = middle_of(cells, label, marks, math.ceil(reach / CELL))
        if size < LEAST:
            unnamed.append(label)
            continue
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
        axes.text(rates[column], computed[row], label, ha="center", va="center", size=style.SMALL, rotation=ALONG,
                  bbox=box)  # fmt: skip
    return unnamed


def cell_of(place: Place) -> tuple[int, int]:
    return tuple(math.floor((at - ends[0]) / (ends[1] - ends[0]) * CELLS)
                 for at, ends in zip(reversed(place.at), (COMPUTED, RATES), strict=True))  # fmt: skip


def middle_of(
    cells: list[list[str]], label: str, marks: list[tuple[int, int]] = (), free: int = 0
) -> tuple[int, int, int]:
    """(row, column, distance to the edge of its region) of the cell deepest within its region that has ``free`` cells
    without a mark on every side; of several, the one nearest to the middle of the map. Distance 0 if there is none.

    >>> cells = [["a"] * 3 + ["b"]] * 3
    >>> middle_of(cells, "a"), middle_of(cells, "b"), middle_of(cells, "b", free=1)
    ((1, 1, 2), (1, 3, 1), (0, 0, 0))
    >>> middle_of(cells, "a", marks=[(1, 1)])
    (1, 2, 1)
    """
    import numpy as np
    from scipy.ndimage import distance_transform_cdt

    depth = distance_transform_cdt(np.pad(np.array(cells) == label, 1), "chessboard")[1:-1, 1:-1]
    high, wide = depth.shape
    found = [(0, 0, 0)]
    for row, column in itertools.product(range(free, high - free), range(free, wide - free)):
        near = any(max(abs(row - y), abs(column - x)) <= free for y, x in marks)
        if depth[row, column] and not near:
            found.append((row, column, int(depth[row, column])))
    return max(found, key=lambda each: (each[2], -abs(each[0] - high // 2) - abs(each[1] - wide // 2)))


def draw_equal(axes, asked: Asked, ranks: int) -> None:
    """The line where an all-reduce of all gradients takes as long as the step of one device."""
    ends = []
    for rate in RATES:
        beta_s = at_rate(asked.link, 10**rate).of_ring(ranks).beta_s
        ends.append(math.log10(1e9 * formulas.ring_all_reduce_s(1.0, ranks, 0.0, beta_s)))
    axes.plot(RATES, ends, color=style.BLACK, linewidth=1, linestyle=(0, (4, 3)))


def draw_places(axes, places: list[Place], won: dict[Place, str], looks: dict[str, dict]) -> None:
    names = list(dict.fromkeys(place.name for place in places))
    for place in places:
        marker = MARKS[names.index(place.name) % len(MARKS)]
        first = place is next(each for each in places if each.name == place.name)
        axes.plot(*place.at, marker, markersize=7, markeredgecolor=style.BLACK, markeredgewidth=1.2, color=style.BLACK,
                  markerfacecolor=looks[won[place]]["facecolor"], label=place.name if first else None)  # fmt: skip
