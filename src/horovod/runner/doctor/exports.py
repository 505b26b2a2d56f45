"""Lists the exports of Horovod's modules from their files, without any framework installed."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import horovod

_ROOT = Path(horovod.__file__).resolve().parent
# How often a name may be handed on from one module to the next.
_MOST_STEPS = 8


def module_file(name: str) -> Path | None:
    """The file of a module of Horovod; None if there is no such module.

    Args:
        name: in full, such as ``horovod.torch``.
    """
    path = _ROOT.joinpath(*name.split(".")[1:])
    candidates = (
        path / "__init__.py",
        *(path.with_name(path.name + end) for end in (".py", ".pyi")),
    )
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def exported_names(module: str) -> frozenset[str]:
    """The public names of a module of Horovod: those of ``__all__``, or what it defines."""
    found: set[str] | None = None
    for node in _tree(module).body:
        if _target(node) == "__all__" and isinstance(node, ast.Assign | ast.AnnAssign):
            assert node.value is not None, module
            found = set(ast.literal_eval(node.value))
        elif _target(node) == "__all__" and isinstance(node, ast.AugAssign):
            found = (found or set()) | exported_names(_module_of_list(module, node.value))
    if found is not None:
        return frozenset(found)
    return frozenset(name for name in _definitions(module) if not name.startswith("_"))


def _module_of_list(module: str, node: ast.expr) -> str:
    """The module whose list an expression such as ``ops.__all__`` names in this one."""
    assert isinstance(node, ast.Attribute), module
    assert isinstance(node.value, ast.Name), module
    origin = _definitions(module)[node.value.id]
    assert isinstance(origin, ast.ImportFrom), module
    return f"{origin.module}.{node.value.id}"


def arguments_of(module: str, name: str) -> frozenset[str] | None:
    """The names of the arguments that a function, or the constructor of a class, takes.

    Returns:
        None if it takes any, or if the file does not tell.
    """
    for _ in range(_MOST_STEPS):
        node = _definitions(module).get(name)
        if isinstance(node, ast.ImportFrom):
            origin = next(each for each in node.names if (each.asname or each.name) == name)
            if node.module is None or module_file(node.module) is None:
                return None
            module, name = node.module, origin.name
            continue
        if isinstance(node, ast.ClassDef):
            node = next((each for each in node.body if _name_of(each) == "__init__"), None)
        if isinstance(node, ast.FunctionDef) and node.args.kwarg is None:
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return frozenset(argument.arg for argument in given)
        return None
    return None


@functools.cache
def _tree(module: str) -> ast.Module:
    path = module_file(module)
    return ast.Module([], []) if path is None else ast.parse(path.read_text())


@functools.cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """The statement that defines each name at the top of a module."""
    found: dict[str, ast.stmt] = {}
    pending = list(_tree(module).body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.If):  # TYPE_CHECKING and the like
            pending += node.body
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names = exported_names(node.module or "")
            handed_on = ast.ImportFrom(node.module, [ast.alias(name) for name in names], node.level)
            found.update(dict.fromkeys(names, handed_on))
        elif isinstance(node, ast.ImportFrom):
            found.update(dict.fromkeys((alias.asname or alias.name for alias in node.names), node))
        elif name := _name_of(node) or _target(node):
            found[name] = node
    return found


def _name_of(node: ast.stmt) -> str:
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""


def _target(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return ""
