"""``_native.pyi`` says what the native module has: nothing else tells type checkers about it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import horovod
from horovod import _native

STUB = ast.parse((Path(horovod.__file__).parent / "_native.pyi").read_text())
# Python's own, or nanobind's.
IGNORED = {"__doc__", "__module__", "__new__", "__file__", "__loader__", "__name__", "__package__"}
IGNORED |= {"__spec__", "__qualname__"}


def public(scope: Any) -> dict[str, Any]:
    """What a module or a class defines itself."""
    # Classes that only the engine makes have no __init__ of their own.
    no_init = type(object.__init__)
    return {
        name: value
        for name, value in vars(scope).items()
        if name not in IGNORED and not isinstance(value, no_init)
    }


def defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What the stub defines at this level."""
    found: dict[str, ast.stmt] = {}
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            found[each.name] = each
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each
    return found


def parameters(function: ast.FunctionDef) -> list[str]:
    """Each parameter as ``name`` or ``name=``, with ``*`` where only names may follow."""
    arguments = function.args
    if arguments.vararg or arguments.kwarg:
        return []
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    found = [each.arg + "=" * (index >= required) for index, each in enumerate(plain)]
    if arguments.kwonlyargs:
        found.append("*")
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(each.arg + "=" * (default is not None))
    return found


def bound_parameters(value: Any) -> list[str]:
    """The same of a function of the module; nanobind keeps its text."""
    ((text, *_),) = value.__nb_signature__
    # \0, \1, ... stand for defaults, and the types of arrays are no Python: neither matters here.
    source = re.sub(r"ndarray\[[^]]*\]", "object", text.replace("\\", "_")) + ": ..."
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return parameters(function)


def compared(scope: Any, body: list[ast.stmt], path: str) -> list[str]:
    """What differs, in words."""
    has, says = public(scope), defined(body)
    differences = [f"{path}.{name} is not in _native.pyi" for name in has.keys() - says.keys()]
    differences += [f"{path}.{name} is only in _native.pyi" for name in says.keys() - has.keys()]
    for name in has.keys() & says.keys():
        value, node, its = has[name], says[name], f"{path}.{name}"
        if isinstance(node, ast.ClassDef):
            differences += compared(value, node.body, its)
        elif isinstance(node, ast.FunctionDef) and hasattr(value, "__nb_signature__"):
            said, bound = parameters(node), bound_parameters(value)
            if said and bound and said != bound:
                differences.append(f"{its} takes ({', '.join(bound)}), not ({', '.join(said)})")
    return sorted(differences)


def test_the_stub_is_true() -> None:
    assert compared(_native, STUB.body, "_native") == []


@pytest.mark.parametrize(
    ("stub", "difference"),
    [
        ("", "x.Color is not in _native.pyi"),
        ("class Color:\n  RED: int\n  BLUE: int", "x.Color.BLUE is only in _native.pyi"),
    ],
)
def test_a_difference_is_named(stub: str, difference: str) -> None:
    class Scope:
        class Color:
            RED = 1

    assert difference in compared(Scope, ast.parse(stub).body, "x")
