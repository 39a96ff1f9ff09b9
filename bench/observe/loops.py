"""Whether a thread is still in the loop in which it has trained, by its frames and the script's source."""

import ast
import functools
from types import CodeType, FrameType

from bench.files import PROJECT
from bench.launch.stacks import of_library
from bench.observe.origin import parsed

Stack = list[tuple[CodeType, int]]  # the script's own frames, outermost first: code, and the line that it is at
BENCH = PROJECT / "bench"


@functools.lru_cache(maxsize=1000)
def of_script(file: str) -> bool:
    """Whether a file is the script's: no library's, and not the Watch's."""
    return not (of_library(file) or file.startswith(f"{BENCH}/"))


def stack_of(frame: FrameType | None) -> Stack:
    """The script's frames of a thread, from its module on. frame: the innermost."""
    found = []
    while frame:
        if of_script(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lineno))
            if frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return found[::-1]


def has_left(trained: Stack, now: Stack) -> bool | None:
    """Whether a thread has left the outermost loop in which it trained. trained: as it was in a step. None where no
    loop is seen in the script itself."""
    for depth, (code, line) in enumerate(trained):
        if loop := loop_around(code, line):
            same = now[:depth] == trained[:depth] and len(now) > depth and now[depth][0] is code
            return not (same and loop[0] <= now[depth][1] <= loop[1])
    return None


def loop_around(code: CodeType, line: int) -> tuple[int, int] | None:
    """First and last line of the outermost loop around a line of a function."""
    around = [loop for loop in loops(code.co_filename) if code.co_firstlineno <= loop[0] <= line <= loop[1]]
    return min(around, default=None)


@functools.lru_cache(maxsize=100)
def loops(file: str) -> list[tuple[int, int]]:
    """First and last lines of a file's loops; none where there is no source."""
    kinds = (ast.For, ast.AsyncFor, ast.While)
    return [(node.lineno, node.end_lineno) for node in ast.walk(parsed(file)) if isinstance(node, kinds)]
