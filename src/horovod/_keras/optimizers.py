"""Optimizers of both generations of Keras."""

from __future__ import annotations

from typing import Any


def innermost(optimizer: Any) -> Any:
    """The optimizer that has the rate and the momentum, inside of one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def follows_schedule(optimizer: Any) -> bool:
    """Whether the learning rate is a schedule, which cannot be set."""
    rate = getattr(optimizer, "_learning_rate", None)
    return callable(optimizer.learning_rate if rate is None else rate)
