"""Batches out of samples, for frameworks that take NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def stack(samples: Sequence[Any]) -> Any:
    """Return a batch: arrays with a first axis for the samples, in the structure of a sample.

    Dictionaries, tuples, named tuples and lists are structure; numbers, arrays, tensors in host
    memory, strings and bytes are stacked.

    Args:
        samples: at least one; all of the same structure and shapes.

    Raises:
        ValueError: shapes differ.
        TypeError: something else than the above is in a sample.

    Example:
        >>> stack([{"x": 1.0, "y": "a"}, {"x": 2.0, "y": "b"}])["x"]
        array([1., 2.])
    """
    import numpy as np

    first = samples[0]
    if isinstance(first, dict):
        return {key: stack([sample[key] for sample in samples]) for key in first}
    if isinstance(first, list | tuple):
        columns = [stack(column) for column in zip(*samples, strict=True)]
        if hasattr(first, "_fields"):
            return type(first)(*columns)
        return tuple(columns) if isinstance(first, tuple) else columns
    batch = np.stack([np.asarray(sample) for sample in samples])
    if batch.dtype == object:
        raise TypeError(
            f"samples of {type(first).__name__} cannot be stacked: give collate=, a function that "
            "makes a batch of a list of samples"
        )
    return batch
