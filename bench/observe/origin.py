"""On a machine without a GPU: whether a tensor that a line of a script reads would lie on the GPU where there is one.

Here all tensors lie on the CPU. What is computed from weights or by a module would lie on the GPU; what is drawn or
made of numbers, as ``torch.rand(1)``, would not. So the expression that is evaluated is looked up in the source, and so
are the assignments of the names in it. Nothing is called.
"""

import ast
import builtins
import functools
import itertools
import linecache
import types
from collections.abc import Iterator

import torch
from torch import nn

HOST, UNKNOWN, DEVICE = range(3)
MISSING = object()
NUMBERS = (int, float, complex, bool, type(None), type, torch.dtype, types.ModuleType, types.FunctionType,
           types.BuiltinFunctionType)  # fmt: skip


@functools.lru_cache(maxsize=64)
def parsed(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def origin_of(frame: types.FrameType) -> int:
    """Where the tensors in the expression come from that a frame evaluates just now: HOST, UNKNOWN or DEVICE."""
    reading = Reading(frame)
    return max(map(reading.origin, reading.expressions()), default=UNKNOWN)


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def place_of(node: ast.expr) -> tuple:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


class Reading:
    """What a frame evaluates, and the names in it."""

    def __init__(self, frame: types.FrameType):
        self.frame, self.tree, self.seen = frame, parsed(frame.f_code.co_filename), set()

    def expressions(self) -> list[ast.AST]:
        """The expression; those of the whole statement for a Python that does not say which one it is."""
        code, line, place = self.frame.f_code, self.frame.f_lineno, None
        if hasattr(code, "co_positions"):
            place = next(itertools.islice(code.co_positions(), self.frame.f_lasti // 2, None))
        around = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and place_of(node) == place:
                return [node]
            if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
                around = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return around

    def origin(self, node: ast.AST) -> int:
        if isinstance(node, ast.Call) and isinstance(self.value(node.func), nn.Module):
            return DEVICE
        if not isinstance(node, ast.Name | ast.Attribute):
            return max(map(self.origin, ast.iter_child_nodes(node)), default=HOST)
        value = self.value(node)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            return DEVICE
        if isinstance(value, NUMBERS):
            return HOST
        if isinstance(node, ast.Attribute):  # of a tensor, as its methods, or of an object
            return self.origin(node.value) if value is MISSING else UNKNOWN
        if isinstance(value, str | torch.device):
            return UNKNOWN
        if node.id in self.seen:
            return HOST
        self.seen.add(node.id)
        return max(map(self.origin, self.assigned(node.id)), default=UNKNOWN)

    def assigned(self, name: str) -> Iterator[ast.AST]:
        """What is assigned to a name in the function of the frame; in the whole script for what lies outside."""
        line, scope = self.frame.f_lineno, self.tree
        for node in ast.walk(self.tree) if name in self.frame.f_locals else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= node.end_lineno:
                scope = node
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    pairs = zip(target.elts, node.value.elts, strict=False) if several else [(target, node.value)]
                    yield from (value for to, value in pairs if any(is_name(each, name) for each in ast.walk(to)))

    def value(self, node: ast.AST):
        """What a name or an attribute stands for now; MISSING where somebody's code would have to be called for it."""
        if isinstance(node, ast.Name):
            places = (self.frame.f_locals, self.frame.f_globals, vars(builtins))
            return next((place[node.id] for place in places if node.id in place), MISSING)
        if not isinstance(node, ast.Attribute):
            return MISSING
        own = getattr(self.value(node.value), "__dict__", {})
        places = (own, own.get("_modules", {}), own.get("_parameters", {}), own.get("_buffers", {}))
        return next((place[node.attr] for place in places if node.attr in place), MISSING)
