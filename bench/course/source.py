"""The project's own code in a chapter, read from its file so that it is never out of date."""

import ast
from pathlib import Path

from bench.errors import UserError
from bench.files import PROJECT


class Source:
    """A part of a file, with its place. Highlighted in a notebook; text when printed."""

    def __init__(self, path: Path, first: int, text: str):
        self.text = text
        self.place = f"# {path.relative_to(PROJECT)}, line {first}"

    def __repr__(self) -> str:
        return f"{self.place}\n{self.text}"

    def _repr_html_(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        return highlight(repr(self), PythonLexer(), HtmlFormatter(noclasses=True, nobackground=True))


def source(module: str, name: str | None = None) -> Source:
    """A function, class, method or constant (name), or the docstring of a module. UserError if it does not exist."""
    path = PROJECT.joinpath(*module.split(".")).with_suffix(".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    if not path.exists():
        raise UserError(f"this project has no module {module}")
    text = path.read_text()
    node = ast.parse(text)
    if name is None:
        if ast.get_docstring(node) is None:
            raise UserError(f"{module} has no docstring: name a function or a class of it")
        return Source(path, 1, "\n".join(text.splitlines()[: node.body[0].end_lineno]))
    for part in name.split("."):
        node = next((n for n in getattr(node, "body", []) if part in names(n)), None)
        if node is None:
            raise UserError(f"there is no {name} in {module}")
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return Source(path, first, "\n".join(line[indent:] for line in lines))


def names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
