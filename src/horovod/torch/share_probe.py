"""Whether an optimizer can be cut: it is tried out on small parameters, whole and in two parts."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHAPES = ((4, 6), (5,))
# Where each of these parameters is cut: the first part goes to one optimizer, the rest to another.
_CUTS = (7, 2)
# The scales of the gradients of each step; norms that clip must show.
_SCALES = (1.0, 1e3, 1e-2, 1e-5)
# Options that say what the parameters of a group are, and not how they are updated.
NOT_OPTIONS = frozenset(("params", "param_names"))


def find_state_of_elements(optimizer: torch.optim.Optimizer) -> frozenset[str]:
    """Return the keys of state that has one value for each element of a parameter.

    Args:
        optimizer: is not changed; what it does to each element of a parameter must not depend on
            other elements.

    Raises:
        UsageError: it depends on them, or that cannot be found out.
    """
    name = type(optimizer).__name__
    try:
        whole, values = _train_whole(optimizer)
        parts, cut_values = _train_cut(optimizer)
    except Exception as error:  # of any class of users
        raise UsageError(
            f"shard_state=True: {name} cannot be cut into shares: on a part of a small parameter "
            f"it failed with {type(error).__name__}: {error}; use it without shard_state, or an "
            "optimizer that updates each element by itself, such as SGD or AdamW"
        ) from error
    for value, cut in zip(values, cut_values, strict=True):
        if not torch.allclose(value, cut, rtol=1e-9, atol=1e-12):
            raise UsageError(
                f"shard_state=True: {name} updates an element of a parameter by more than that "
                "element, such as a norm, so that shares would be updated otherwise than whole "
                "parameters; use it without shard_state, or an optimizer that updates each element "
                "by itself, such as SGD or AdamW"
            )
    return _state_of_elements(name, whole, parts)


def _train_whole(
    optimizer: torch.optim.Optimizer,
) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    values = [value for _ in optimizer.param_groups for value in _values(optimizer)]
    tried = _like(optimizer, values, len(_SHAPES))
    for step in range(len(_SCALES)):
        for index, value in enumerate(values):
            value.grad = _gradient(value, index, step)
        tried.step()
    return tried, values


def _train_cut(
    optimizer: torch.optim.Optimizer,
) -> tuple[list[torch.optim.Optimizer], list[torch.Tensor]]:
    values = [value for _ in optimizer.param_groups for value in _values(optimizer)]
    cuts = _CUTS * len(optimizer.param_groups)
    pieces = [
        [value.view(-1)[:cut] for value, cut in zip(values, cuts, strict=True)],
        [value.view(-1)[cut:] for value, cut in zip(values, cuts, strict=True)],
    ]
    parts = [_like(optimizer, of_part, len(_SHAPES)) for of_part in pieces]
    for step in range(len(_SCALES)):
        gradients = [_gradient(value, index, step).view(-1) for index, value in enumerate(values)]
        for first, rest, gradient, cut in zip(*pieces, gradients, cuts, strict=True):
            first.grad, rest.grad = gradient[:cut].clone(), gradient[cut:].clone()
        for part in parts:
            part.step()
    return parts, values


def _values(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Make small parameters on the device of the first parameter, the same in every call."""
    device = next(p.device for group in optimizer.param_groups for p in group["params"])
    return [_numbers(shape, index).to(device) for index, shape in enumerate(_SHAPES)]


def _gradient(value: torch.Tensor, index: int, step: int) -> torch.Tensor:
    seed = 1000 + 10 * step + index
    return (_numbers(value.shape, seed) * _SCALES[step]).to(value.device)


def _numbers(shape: Sequence[int], seed: int) -> torch.Tensor:
    # Not by the global generator, whose numbers are the program's.
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device="cpu")


def _like(
    optimizer: torch.optim.Optimizer, values: Sequence[torch.Tensor], per_group: int
) -> torch.optim.Optimizer:
    """Make an optimizer with the options of another one, without state and hooks."""
    own = [param for group in optimizer.param_groups for param in group["params"]]
    memo: dict[int, Any] = {id(param): param for param in own}
    attributes = {
        key: value
        for key, value in vars(optimizer).items()
        if key not in ("param_groups", "state", "step") and not key.endswith("_hooks")
    }
    tried = object.__new__(type(optimizer))
    tried.__dict__.update(copy.deepcopy(attributes, memo))
    hooks = [key for key in vars(optimizer) if key.endswith("_hooks")]
    tried.__dict__.update({key: OrderedDict() for key in hooks})
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key not in NOT_OPTIONS}
        params = list(values[number * per_group : (number + 1) * per_group])
        groups.append({"params": params, **copy.deepcopy(options, memo)})
    tried.__dict__.update(param_groups=groups, state=defaultdict(dict))
    return tried


def _state_of_elements(
    name: str, whole: torch.optim.Optimizer, parts: Sequence[torch.optim.Optimizer]
) -> frozenset[str]:
    found: set[str] = set()
    for tried in (whole, *parts):
        for param, state in tried.state.items():
            for key, value in state.items():
                if not isinstance(value, torch.Tensor) or value.dim() == 0:
                    continue
                if not isinstance(param, torch.Tensor) or value.shape != param.shape:
                    raise UsageError(
                        f"shard_state=True: {name} keeps the state {key!r} of shape "
                        f"{tuple(value.shape)}, which cannot be cut as its parameter is; use it "
                        "without shard_state"
                    )
                found.add(key)
    return frozenset(found)
