"""Ring all-reduce, step by step: an animated SVG that is a complete table when it does not move.

Every rank's tensor is cut into N chunks. In N-1 steps (reduce-scatter) each rank sends one chunk to the next rank,
which adds it to its own; then each rank has one finished chunk. In N-1 more steps (all-gather) those go round.
"""

from dataclasses import dataclass
from html import escape

from bench.analysis import style

SECONDS = 2.4  # a step of the animation
WIDTH, HEAD, ROW, FOOT = 600, 66, 78, 46  # SVG units: 100 an inch
NAMES = 66  # of the column with the steps' names
FONT = 12.5  # 9 points
LETTERS = "abcd"


@dataclass(frozen=True)
class Step:
    """One step of all ranks. sends: (from rank, to rank, chunk). held: held[rank][chunk], the ranks summed in it then.

    phase: "start", "reduce-scatter" or "all-gather".
    """

    phase: str
    sends: tuple[tuple[int, int, int], ...]
    held: tuple[tuple[frozenset[int], ...], ...]


def ring_steps(num_ranks: int) -> list[Step]:
    """The start, then the 2 (N - 1) steps of ring all-reduce on N ranks: this is the algorithm, and it is run here.

    >>> steps = ring_steps(3)
    >>> [step.phase for step in steps]
    ['start', 'reduce-scatter', 'reduce-scatter', 'all-gather', 'all-gather']
    >>> steps[1].sends
    ((0, 1, 0), (1, 2, 1), (2, 0, 2))
    >>> all(chunk == {0, 1, 2} for rank in steps[-1].held for chunk in rank)
    True
    """
    held = [[frozenset([rank])] * num_ranks for rank in range(num_ranks)]
    steps = [Step("start", (), frozen(held))]
    for turn in range(2 * (num_ranks - 1)):
        reducing = turn < num_ranks - 1
        sends = tuple((rank, (rank + 1) % num_ranks, (rank - turn) % num_ranks) for rank in range(num_ranks))
        if not reducing:  # the chunk that was finished last goes first
            sends = tuple((a, b, (a + 1 - (turn - num_ranks + 1)) % num_ranks) for a, b, _ in sends)
        sent = [(to, chunk, held[rank][chunk]) for rank, to, chunk in sends]
        for to, chunk, value in sent:
            held[to][chunk] = held[to][chunk] | value if reducing else value
        steps.append(Step("reduce-scatter" if reducing else "all-gather", sends, frozen(held)))
    return steps


def frozen(held: list[list]) -> tuple:
    """A state that stays as it is."""
    return tuple(map(tuple, held))


class RingAllReduce:
    """The drawing. A notebook shows it as an SVG; ``svg`` is its text; printed, it is the table in words."""

    def __init__(self, num_ranks: int = 3, animated: bool = True):
        if not 2 <= num_ranks <= 4:
            raise ValueError("two to four ranks can be drawn")
        self.num_ranks, self.animated, self.steps = num_ranks, animated, ring_steps(num_ranks)

    def __repr__(self) -> str:
        lines = [f"ring all-reduce on {self.num_ranks} ranks: what each rank holds after each step"]
        for number, step in enumerate(self.steps):
            ranks = "   ".join(
                f"rank {rank}: " + " ".join(label(chunk, held, self.num_ranks) for chunk, held in enumerate(row))
                for rank, row in enumerate(step.held)
            )
            lines.append(f"{number} {step.phase:<14}  {ranks}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:{WIDTH}px">{self.svg()}</div>'

    def svg(self) -> str:
        """The drawing as SVG text: no script, nothing from outside; it does not move where less motion is asked for."""
        name = f"ring{self.num_ranks}{'a' if self.animated else 's'}"
        height = HEAD + ROW * len(self.steps) + FOOT
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" viewBox="0 0 {WIDTH} {height}" width="100%" '
            f'role="img" aria-label="{escape(repr(self))}" font-family="{style.FALLBACK}" font-size="{FONT}">',
            f'<rect width="{WIDTH}" height="{height}" fill="{style.WHITE}"/>',
            self.css(name) if self.animated else "",
            text(10, 22, f"Ring all-reduce on {self.num_ranks} ranks, {self.num_ranks} chunks", size=17, bold=True),
        ]
        parts += [text(self.column(rank) + self.wide / 2, 50, f"rank {rank}", middle=True, bold=True)
                  for rank in range(self.num_ranks)]  # fmt: skip
        parts += [self.row(number) for number in range(len(self.steps))]
        parts += [chip for number in range(1, len(self.steps)) for chip in self.flights(number)]
        partly = "a01: chunk a, summed over ranks 0 and 1. " if self.num_ranks > 2 else "a0: rank 0's chunk a. "
        words = (
            f"Drawing, not a measurement. {partly}Σa: over all ranks.",
            "Orange edge: just received, from the rank named above. The last rank sends to rank 0.",
        )
        parts += [text(10, height - FOOT + 18 + 17 * i, line, colour="#404040") for i, line in enumerate(words)]
        return "".join(parts) + "</svg>"

    @property
    def wide(self) -> float:
        """Width of a rank's column."""
        return (WIDTH - NAMES - 8) / self.num_ranks - 14

    def column(self, rank: int) -> float:
        """Left edge of a rank's column."""
        return NAMES + rank * (self.wide + 14) + 7

    def cell(self, rank: int, chunk: int, number: int) -> tuple[float, float]:
        """The upper left corner of a chunk's cell in the row of a step."""
        return self.column(rank) + chunk * self.wide / self.num_ranks, HEAD + ROW * number + 28

    def row(self, number: int) -> str:
        """What every rank holds after a step, and what was sent to get there."""
        step, y = self.steps[number], HEAD + ROW * number
        new = {(to, chunk) for _, to, chunk in step.sends}
        parts = [f'<rect class="band b{number}" x="4" y="{y + 2}" width="{WIDTH - 8}" height="{ROW - 3}" rx="5" '
                 'fill="#F4F4F4"/>']  # fmt: skip
        lines = {"start": ("start",), "reduce-scatter": (f"step {number}", "reduce-", "scatter"),
                 "all-gather": (f"step {number}", "all-", "gather")}[step.phase]  # fmt: skip
        parts += [text(10, y + 32 + 16 * i, line, bold=i == 0) for i, line in enumerate(lines)]
        for rank, row in enumerate(step.held):
            for chunk, held in enumerate(row):
                parts.append(self.chunk(rank, chunk, held, number, (rank, chunk) in new))
        for sender, to, chunk in step.sends:
            parts.append(self.link(sender, to, chunk, number))
        return "".join(parts)

    def chunk(self, rank: int, chunk: int, held: frozenset, number: int, new: bool) -> str:
        """One cell."""
        x, y = self.cell(rank, chunk, number)
        done = len(held) == self.num_ranks
        fill = "#BFE6D8" if done else "#E8F3FA" if len(held) == 1 else "#FBE3B5"
        edge, thick = (style.VERMILION, 2.2) if new else (style.BLACK, 0.9)
        width = self.wide / self.num_ranks
        return (
            f'<rect x="{x + 1:.1f}" y="{y}" width="{width - 2:.1f}" height="36" fill="{fill}" stroke="{edge}" '
            f'stroke-width="{thick}"/>' + in_cell(x + width / 2, y + 23, label(chunk, held, self.num_ranks))
        )

    def link(self, sender: int, to: int, chunk: int, number: int) -> str:
        """The arrow into a cell that has just been received: from the side of the sender."""
        x, y = self.cell(to, chunk, number)
        middle = x + self.wide / self.num_ranks / 2
        head = f'<path d="M{middle - 4:.1f} {y - 8} l4 7 l4 -7 z" fill="{style.VERMILION}"/>'
        size = FONT if self.num_ranks < 4 else 11
        return head + text(middle, y - 11, f"from {sender}", size, middle=True, colour=style.VERMILION)

    def flights(self, number: int) -> list[str]:
        """The chunks that fly from the row above to this one; seen only while the animation runs."""
        if not self.animated:
            return []
        before, chips = self.steps[number - 1].held, []
        for sender, to, chunk in self.steps[number].sends:
            (x0, y0), (x1, y1) = self.cell(sender, chunk, number - 1), self.cell(to, chunk, number)
            width = self.wide / self.num_ranks
            chips.append(
                f'<g class="chip c{number}" style="--dx:{x1 - x0:.1f}px;--dy:{y1 - y0:.1f}px">'
                f'<rect x="{x0 + 3:.1f}" y="{y0 + 3}" width="{width - 6:.1f}" height="30" rx="4" '
                f'fill="{style.ORANGE}" stroke="{style.BLACK}"/>'
                + in_cell(x0 + width / 2, y0 + 23, label(chunk, before[sender][chunk], self.num_ranks))
                + "</g>"
            )
        return chips

    def css(self, name: str) -> str:
        """The animation: a row's band lights up in its step, and that step's chunks fly into it, over and over."""
        count = len(self.steps)
        total = SECONDS * (count + 0.5)
        rules = [f".{name} .chip{{opacity:0}}"]
        for number in range(count):
            start, end = 100 * number / (count + 0.5), 100 * (number + 1) / (count + 0.5)
            lit, moved = f"{name}-b{number}", f"{name}-c{number}"
            rules.append(f"@keyframes {lit}{{0%,{start:.2f}%{{fill:#F4F4F4}}{start + 0.4:.2f}%,{end - 0.4:.2f}%"
                         f"{{fill:#FFE08A}}{end:.2f}%,100%{{fill:#F4F4F4}}}}")  # fmt: skip
            rules.append(f".{name} .b{number}{{animation:{lit} {total:.1f}s linear infinite}}")
            if number:
                away, there = start + 0.75 * (end - start), start + 0.9 * (end - start)
                rules.append(
                    f"@keyframes {moved}{{0%,{start:.2f}%{{opacity:0;transform:translate(0,0)}}"
                    f"{start + 0.4:.2f}%{{opacity:1;transform:translate(0,0)}}"
                    f"{away:.2f}%{{opacity:1;transform:translate(var(--dx),var(--dy))}}"
                    f"{there:.2f}%,100%{{opacity:0;transform:translate(var(--dx),var(--dy))}}}}"
                )
                rules.append(f".{name} .c{number}{{animation:{moved} {total:.1f}s ease-in-out infinite}}")
        still = f".{name} .band,.{name} .chip{{animation:none}}"
        rules.append(f"@media (prefers-reduced-motion:reduce){{{still}}}@media print{{{still}}}")
        return f"<style>{''.join(rules)}</style>"


def label(chunk: int, held: frozenset, num_ranks: int) -> str:
    """The name of a chunk with the ranks that are summed in it.

    >>> label(0, frozenset([0, 2]), 3), label(1, frozenset([0, 1, 2]), 3)
    ('a02', 'Σb')
    """
    return "Σ" + LETTERS[chunk] if len(held) == num_ranks else LETTERS[chunk] + "".join(map(str, sorted(held)))


def in_cell(x: float, y: float, words: str) -> str:
    """A chunk's name in its cell, centred at x: the ranks are a little smaller and lower, three of them more so."""
    digits = words[1:] if words[1:].isdigit() else ""
    letters = escape(words.removesuffix(digits))
    small = f'<tspan font-size="{10.5 if len(digits) < 3 else 8.6}" dy="2.5">{digits}</tspan>' if digits else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{letters}{small}</text>'


def text(x: float, y: float, words: str, size: float = FONT, bold: bool = False, middle: bool = False,
         colour: str = style.BLACK) -> str:  # fmt: skip
    """An SVG text."""
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}"{weight}{anchor}>{escape(words)}</text>'


def ring_all_reduce(num_ranks: int = 3, animated: bool = True) -> RingAllReduce:
    """Ring all-reduce on two to four ranks; animated=False: the same table, standing still."""
    return RingAllReduce(num_ranks, animated)
