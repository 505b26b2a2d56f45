"""Describe what a training consists of, as texts that are the same in every process."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import itertools
import json
import sysconfig
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from types import CodeType, FunctionType

    import torch

# Beyond it, an object is described by its class alone.
_DEEPEST = 3
_MOST_CHARACTERS = 80
_CONTEXT = 20
_MOST_DIFFERENCES = 3
_SCALARS = (bool, int, float, str)
_STDLIB = sysconfig.get_path("stdlib")


def flat(name: str, value: object) -> dict[str, str]:
    """Return the description of a value, one text for each entry of nested mappings.

    Args:
        name: of the value; the names of entries follow it, separated by dots.
        value: anything.

    Example:
        >>> flat("optimizer", {"lr": 0.1, "betas": (0.9, 0.99)})
        {'optimizer.lr': '0.1', 'optimizer.betas': '[0.9, 0.99]'}
    """
    return _flattened(name, described(value))


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return what differs between two descriptions, both values named; empty if nothing does."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    found = []
    for name in names[:_MOST_DIFFERENCES]:
        was, now_is = _short(before.get(name), now.get(name))
        found.append(f"{name} was {was}, and is {now_is}")
    if len(names) > _MOST_DIFFERENCES:
        found.append(f"{len(names) - _MOST_DIFFERENCES} more")
    return "; ".join(found)


def described(value: object, depth: int = 0) -> Any:
    """Return what JSON can hold of a value, without anything that differs between processes."""
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if value is None or isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return f"{len(value)} bytes {_digest(value)}"
    if isinstance(value, Mapping):
        return {str(key): described(each, depth) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [described(each, depth) for each in value]
    if isinstance(value, Set):
        return sorted(json.dumps(described(each, depth)) for each in value)
    if inspect.ismodule(value):  # in the closure of a function
        return value.__name__
    if inspect.isroutine(value) or isinstance(value, type | functools.partial):
        return _callable(value, depth)
    return _object(value, depth)


def described_module(module: torch.nn.Module, *, with_values: bool) -> dict[str, Any]:
    """Return what a module of PyTorch consists of: classes, options, shapes.

    Args:
        module: also of Lightning, or of TorchScript.
        with_values: whether the values of its tensors count.
    """
    found: dict[str, Any] = {}
    for name, each in module.named_modules():
        options = _attributes(each, _DEEPEST - 1, leave_out=("training",))
        kind = f"{_name(type(each))}({each.extra_repr()})"
        found[name or "module"] = {"class": kind, **options}
    for name, tensor in module.state_dict().items():
        found[f"{name} (tensor)"] = _array(tensor, with_values=with_values)
    return {**found, "hparams": described(getattr(module, "hparams", None), _DEEPEST - 1)}


def _object(value: Any, depth: int) -> Any:
    if hasattr(value, "named_modules") and hasattr(value, "state_dict"):
        return described_module(value, with_values=True)
    if hasattr(value, "__array__"):
        return _array(value, with_values=True)
    name = _name(type(value))
    if depth >= _DEEPEST:
        return name
    # Keras: its objects know their options.
    if hasattr(value, "get_config"):
        try:
            return {"class": name, "config": described(value.get_config(), depth + 1)}
        except Exception:  # whatever it raises that cannot tell them
            return {"class": name, **_attributes(value, depth)}
    if hasattr(value, "__dict__"):
        return {"class": name, **_attributes(value, depth)}
    # Of dates and the like; others have only an address.
    text = repr(value)
    return name if " at 0x" in text else text


def _attributes(value: Any, depth: int, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the constructor arguments of an object; of private ones only numbers and texts."""
    attributes = vars(value)
    return {
        name: described(attributes[name], depth + 1)
        for name in sorted(attributes)
        if name not in leave_out
        and (not name.startswith("_") or isinstance(attributes[name], _SCALARS))
    }


def _callable(value: Any, depth: int) -> Any:
    if isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
        return [described(part, depth + 1) for part in parts] if depth < _DEEPEST else "partial"
    if inspect.ismethod(value):
        return [_callable(value.__func__, depth), described(value.__self__, depth + 1)]
    if inspect.isfunction(value):
        return _function(value, depth)
    return _name(value)


def _function(function: FunctionType, depth: int) -> Any:
    """Describe a function of a library by its name, others also by their code and values."""
    code = function.__code__
    if _is_of_library(code.co_filename) and not function.__closure__:
        return _name(function)
    name = f"{_name(function)} (code {_digest(repr(_code(code)).encode())})"
    if depth >= _DEEPEST:
        return name
    cells = [_content(cell) for cell in function.__closure__ or ()]
    held = dict(zip(code.co_freevars, cells, strict=True))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    if not held and not defaults:
        return name
    return [name, described(held, depth + 1), described(defaults, depth + 1)]


def _is_of_library(filename: str) -> bool:
    return filename.startswith(_STDLIB) or "site-packages" in filename


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return None


def _code(code: CodeType) -> list[Any]:
    """Return the code of a function, without its place in a file."""
    consts = [
        _code(co_const)
        if inspect.iscode(co_const)
        else sorted(map(repr, co_const))
        if isinstance(co_const, frozenset)
        else co_const
        for co_const in code.co_consts
    ]
    return [code.co_code, consts, code.co_names, code.co_varnames[: code.co_argcount]]


def _array(value: Any, *, with_values: bool) -> str:
    shape = "×".join(map(str, getattr(value, "shape", ()))) or "scalar"
    kind = f"{str(getattr(value, 'dtype', type(value).__name__)).rpartition('.')[2]} {shape}"
    if not with_values:
        return kind
    try:
        array = np.ascontiguousarray(value)
        return f"{kind} {_digest(array.tobytes())}"
    except (TypeError, ValueError, RuntimeError):  # on a GPU, or of a type that NumPy lacks
        return kind


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None) or "builtins"
    name = getattr(value, "__qualname__", None) or type(value).__name__
    return f"{module}.{name}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _flattened(name: str, tree: Any) -> dict[str, str]:
    if isinstance(tree, dict) and tree:
        parts = {f"{name}.{key}": each for key, each in tree.items()}
    elif isinstance(tree, list) and any(isinstance(each, dict | list) for each in tree):
        parts = {f"{name}[{index}]": each for index, each in enumerate(tree)}
    else:
        return {name: json.dumps(tree, ensure_ascii=False)}
    found: dict[str, str] = {}
    for key, each in parts.items():
        found |= _flattened(key, each)
    return found


def _short(*texts: str | None) -> list[str]:
    """Return two texts for a message; of long ones only the part where they differ."""
    pairs = enumerate(itertools.zip_longest(*(text or "" for text in texts)))
    start = max(0, next((at for at, each in pairs if len(set(each)) > 1), 0) - _CONTEXT)
    found = []
    for text in texts:
        if text is None:
            found.append("not there")
        elif len(text) <= _MOST_CHARACTERS:
            found.append(text)
        else:
            end = start + _MOST_CHARACTERS
            found.append("…" * (start > 0) + text[start:end] + "…" * (end < len(text)))
    return found
