"""Puts the reference of the Python package into the site of docs/: a preprocessor of mdBook (book.toml).

A line `<!-- reference: coorp.reactor -->` of a page becomes the public names of that module: each class and function
with its signature and its docstring, from the stubs of the native module and from the source. Nothing is imported.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MARK = re.compile(r"^<!-- reference: ([\w.]+) -->$", re.M)
Named = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign


def source(module: str) -> ast.Module:
    base = HERE / module.replace(".", "/")
    for file in (base.with_suffix(".pyi"), base.with_suffix(".py"), base / "__init__.py"):
        if file.exists():
            return ast.parse(file.read_text())
    raise SystemExit(f"python/reference.py: there is no module {module}")


def names(statement: ast.stmt) -> list[str]:
    """Returns the names that a statement defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def public(module: str) -> list[str]:
    """Returns the names in the module's `__all__`, without its version."""
    for statement in source(module).body:
        if isinstance(statement, ast.Assign) and names(statement) == ["__all__"]:
            return [name for name in ast.literal_eval(statement.value) if not name.startswith("_")]
    raise SystemExit(f"python/reference.py: {module} has no __all__")


def find(module: str, name: str) -> tuple[Named, str]:
    """Returns what defines a name of a module, and the docstring of a constant, which follows it."""
    body = source(module).body
    # Also what is declared for checkers, and made when it is asked for.
    body += [inner for outer in body if isinstance(outer, ast.If) for inner in outer.body]
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.ImportFrom) and name in [alias.name for alias in statement.names]:
            return find(str(statement.module), name)
        if isinstance(statement, Named) and name in names(statement):
            return statement, literal(after)
    raise SystemExit(f"python/reference.py: {module} does not define {name}")


def literal(statement: ast.stmt | None) -> str:
    """Returns the text of a statement that is only a string."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def signature(function: ast.FunctionDef) -> str:
    """Returns a method's parameters and its result, without `self`."""
    arguments = function.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    result = function.returns
    shown = f" -> {ast.unparse(result)}" if result and function.name not in ("__new__", "__init__") else ""
    return f"({ast.unparse(arguments)}){shown}"


def members(of: ast.ClassDef) -> Iterator[str]:
    """Yields a class's public properties, methods and values, each as an item of a list."""
    for statement, after in zip(of.body, [*of.body[1:], None], strict=True):
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            decorators = [ast.unparse(decorator) for decorator in statement.decorator_list]
            shown = f": {ast.unparse(statement.returns)}" if statement.returns else ""
            if "property" not in decorators:
                shown = signature(statement)
            text = " ".join((ast.get_docstring(statement) or "").split())
            yield f"- `{statement.name}{shown}`  \n  {text}"
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and literal(after):
            yield f"- `{names(statement)[0]}`: {literal(after)}"


def entry(module: str, name: str) -> Iterator[str]:
    """Yields the parts of a name's entry."""
    node, text = find(module, name)
    yield f"### {module}.{name}"
    if isinstance(node, ast.ClassDef):
        made = [
            part for part in node.body if isinstance(part, ast.FunctionDef) and part.name in ("__new__", "__init__")
        ]
        bases = [ast.unparse(base) for base in node.bases if hasattr(builtins, ast.unparse(base))]
        how = signature(made[0]) if made else f"({', '.join(bases)})" if bases else ""
        yield f"```python\nclass {name}{how}\n```"
        yield ast.get_docstring(node) or ""
        yield "\n".join(members(node))
    elif isinstance(node, ast.FunctionDef):
        yield f"```python\ndef {name}{signature(node)}\n```"
        yield ast.get_docstring(node) or ""
    else:
        yield text


def reference(module: str) -> str:
    """Returns the reference of a module, as Markdown."""
    return "\n\n".join(part for name in public(module) for part in entry(module, name) if part)


def replace(part: Any) -> None:  # noqa: ANN401
    """Replaces the marks in all pages of a book."""
    if isinstance(part, dict):
        if isinstance(part.get("content"), str):
            part["content"] = MARK.sub(lambda mark: reference(mark[1]), part["content"])
        for value in part.values():
            replace(value)
    elif isinstance(part, list):
        for value in part:
            replace(value)


def main() -> None:
    if sys.argv[1:2] == ["supports"]:
        return
    _context, book = json.load(sys.stdin)
    replace(book)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
