"""What a script says of itself: its first line, and constants that say what a Watch must make of it.

FINDS = ("whole-data",)      found, and nothing else
ASKS = ("no-reshuffle",)     asked: by design?
EXPECTS = ("drift",)         the script declares it, and it is listed as expected
ANY = ("drift", "no-group")  at least one of these is found
MAY = ("drift",)             may be found or asked besides
MAY_ASK = ("whole-data",)    may be asked besides
SAYS = "reports alone"       words that must be in what it prints
UNSEEN = ("strict-false",)   not observed, which the report says; never "looked for, clean"
CLEAN = ("strict-false",)    looked for, and clean
CANNOT = "why"               the script is wrong, and no Watch can see it
RAISES = "RuntimeError"      it ends with this exception; what is found is read from its report at the exit
HANGS = True                 it does not end; the Watch's own report of the hang is what counts
RANKS = 1                    processes that are started; 2 without it
"""

import ast
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 150  # for one script
HANG_S = 90  # in which the report of a hang must have come


@dataclass(frozen=True)
class Script:
    """One script and its expectation."""

    path: Path
    text: str
    about: str
    finds: tuple = ()
    asks: tuple = ()
    expects: tuple = ()
    any: tuple = ()
    may: tuple = ()
    may_ask: tuple = ()
    says: str = ""
    unseen: tuple = ()
    clean: tuple = ()
    cannot: str = ""
    raises: str = ""
    hangs: bool = False
    ranks: int = 2

    @property
    def kind(self) -> str:
        """The folder: "right" or "wrong"."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """As in the table: right/torchrun_tutorial."""
        return f"{self.kind}/{self.path.stem}"

    @property
    def found(self) -> set:
        """Names one of which, at least, is found."""
        return {*self.finds, *self.any}

    @property
    def told_of(self) -> set:
        """Names that are found or asked."""
        return self.found | {*self.asks}

    @property
    def horovod(self) -> bool:
        """Whether it runs under horovodrun, not under torchrun."""
        return "import horovod" in self.text

    @property
    def expectation(self) -> str:
        """In words, for the table."""
        words = [*self.finds, *(f"{name}?" for name in self.asks), *(f"({name})" for name in self.expects)]
        words += [" or ".join(self.any)] * bool(self.any) + [f'"{self.says}"'] * bool(self.says)
        words += [self.raises] * bool(self.raises) + ["hangs"] * self.hangs
        return ", ".join(words) or ("not visible" if self.cannot else "silent")


def read(path: Path) -> Script:
    """Read a script without running it."""
    text = path.read_text()
    tree = ast.parse(text)
    said = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id.lower()
            if name in Script.__dataclass_fields__ and node.targets[0].id.isupper():
                said[name] = ast.literal_eval(node.value)
    return Script(path, text, (ast.get_docstring(tree) or "").split("\n")[0], **said)


def scripts(names=()) -> list[Script]:
    """All of them, or those whose name has one of these in it."""
    found = [read(path) for kind in ("right", "wrong") for path in sorted((HERE / kind).glob("*.py"))]
    exact = {script.name for script in found} & set(names)
    return [s for s in found if not names or s.name in exact or any(n in s.name for n in {*names} - exact)]
