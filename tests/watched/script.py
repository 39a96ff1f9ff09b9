"""The scripts of `bench.mistakes.scripts`, and what a Watch must make of each.

FINDS whole-data       found, and nothing else
ASKS no-reshuffle      asked: by design?
EXPECTS drift          the script declares it, and it is listed as expected
ANY drift, no-group    at least one of these is found
MAY drift              may be found or asked, too
MAY_ASK whole-data     may be asked, too
SAYS reports alone     words that must be in what it prints
UNSEEN strict-false    not observed, which the report says; never "checked, not found"
CLEAN strict-false     looked for, and clean
CANNOT why             the script is wrong, and no Watch can see it
RAISES RuntimeError    it ends with this exception; what is found is read from its report at the exit
HANGS                  it does not end; the Watch's own report of the hang is what counts
RANKS 1                processes that are started; 2 without it
"""

from dataclasses import dataclass

from bench.mistakes import scripts as cases

LIMIT_S = 150  # for one script
HANG_S = 90  # in which the report of a hang must have come
KINDS = ("right", "wrong")


@dataclass(frozen=True)
class Script:
    """One script and its expectation. name: as in the table, right/torchrun_tutorial."""

    name: str
    text: str
    about: str
    finds: tuple = ()
    asks: tuple = ()
    expects: tuple = ()
    any: tuple = ()
    may: tuple = ()
    may_ask: tuple = ()
    unseen: tuple = ()
    clean: tuple = ()
    says: str = ""
    cannot: str = ""
    raises: str = ""
    hangs: bool = False
    ranks: int = 2

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]

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


def script_of(case: cases.Case) -> Script:
    said = {}
    for keyword, words in case.expectation.items():
        if keyword in ("SAYS", "CANNOT", "RAISES"):
            said[keyword.lower()] = words
        elif keyword in ("HANGS", "RANKS"):
            said[keyword.lower()] = int(words or True)
        else:
            said[keyword.lower()] = tuple(words.split(", "))
    return Script(case.name, case.text, case.about, **said)


def scripts(names=()) -> list[Script]:
    """All of them, or those whose name has one of these in it."""
    found = [script_of(case) for name, case in sorted(cases.read().items()) if name.startswith(KINDS)]
    exact = {script.name for script in found} & set(names)
    return [s for s in found if not names or s.name in exact or any(n in s.name for n in {*names} - exact)]
