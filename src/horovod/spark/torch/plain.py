"""Checkpoints that hold tensors, numbers and texts only, so that loading one runs no code."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from horovod.errors import UsageError

_AS_THEY_ARE = (str, torch.Size, torch.dtype, torch.device)


def plain(value: object, name: str) -> Any:
    """Return a value without objects of other classes than those of tensors, numbers and texts.

    Args:
        value: mappings, lists and tuples of such; numbers of NumPy become those of Python.
        name: of the value, for messages.

    Raises:
        UsageError: there is an object of another class in it.
    """
    if isinstance(value, torch.Tensor):
        is_known = type(value) in (torch.Tensor, torch.nn.Parameter)
        return value if is_known else value.detach().as_subclass(torch.Tensor)
    if value is None or isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, np.generic):
        return plain(value.item(), name)
    if isinstance(value, bool | int | float | complex):
        return _number(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return _mapping(value, name)
    if isinstance(value, list | tuple):
        found = [plain(each, f"{name}[{index}]") for index, each in enumerate(value)]
        return found if isinstance(value, list) else tuple(found)
    raise UsageError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint "
        "cannot hold: loading it could run any code. Let its state_dict() hold tensors, numbers, "
        "texts, and lists and dicts of them"
    )


def saved(state: Mapping[str, object]) -> bytes:
    """Return the file of a checkpoint.

    Raises:
        UsageError: there is something else in it than tensors, numbers and texts.
    """
    buffer = io.BytesIO()
    torch.save({name: plain(value, name) for name, value in state.items()}, buffer)
    return buffer.getvalue()


def loaded(data: bytes, writer: str) -> dict[str, Any]:
    """Return what is in the file of a checkpoint, on the CPU, without running code of it.

    Args:
        data: of :func:`saved`.
        writer: of such files, for messages.

    Raises:
        UsageError: it is another file, or one with objects.
    """
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file can do to it
        raise UsageError(
            f"the run has a checkpoint that no {writer} wrote, or one with objects that are not "
            f"loaded because they could run any code; use another run_id ({error!s:.200})"
        ) from error
    if not isinstance(state, dict):
        raise UsageError(f"the run has a checkpoint that no {writer} wrote; use another run_id")
    return state


def _number(value: Any) -> Any:
    """A number of Python, also of one that has another class, as members of enumerations do."""
    kind = next(each for each in (bool, int, float, complex) if isinstance(value, each))
    return kind(value)


def _mapping(value: Mapping[Any, Any], name: str) -> Any:
    found = {plain(key, name): plain(each, f"{name}.{key}") for key, each in value.items()}
    if not isinstance(value, OrderedDict):
        return found
    ordered = OrderedDict(found)
    if hasattr(value, "_metadata"):  # the versions of modules
        ordered._metadata = plain(value._metadata, name)  # type: ignore[attr-defined]
    return ordered
