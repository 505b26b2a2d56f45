"""Optimizers that are instances of the class of another one, and share what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

FormOptimizer = TypeVar("FormOptimizer", bound="torch.optim.Optimizer")


def wrap(optimizer: torch.optim.Optimizer, form: type[FormOptimizer]) -> FormOptimizer:
    """Return an optimizer with the methods of a form over those of the given optimizer.

    Args:
        optimizer: whose attributes are shared, parameter groups and state among them.
        form: a class whose methods come first; its attributes are for the caller to set.
    """
    plain = type(optimizer)
    wrapped_class = type(plain.__name__, (form, plain), {"__doc__": plain.__doc__})
    # Not that of the plain class: libraries look for "horovod" in the name of the class, so that
    # they wrap only once. Copies and pickles are of the plain class anyway.
    wrapped_class.__module__ = form.__module__
    wrapped: FormOptimizer = object.__new__(wrapped_class)
    # Sharing the attributes instead of calling a constructor of unknown signature keeps the state.
    # A learning rate scheduler may have put its own step on the instance, which would hide ours.
    wrapped.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    return wrapped
