"""Whether columns and models fit together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def check_shape_compatibility(
    metadata: Mapping[str, Mapping[str, object]],
    feature_columns: Sequence[str],
    label_columns: Sequence[str],
    input_shapes: Sequence[Sequence[int]] | None = None,
    output_shapes: Sequence[Sequence[int]] | None = None,
    label_shapes: Sequence[Sequence[int]] | None = None,
) -> None:
    """Checks that the columns have as many numbers as the model takes and gives.

    Args:
        metadata: of the columns; one whose shape is not known fits.
        feature_columns, label_columns: one for each input and each output.
        input_shapes: of the model's inputs, -1 for the batch; None if nobody knows.
        output_shapes: of its outputs, in the same way.
        label_shapes: what labels are reshaped to; they hold in place of the outputs.

    Raises:
        UsageError: says which column does not fit.
    """
    if input_shapes is not None:
        _check("feature", metadata, feature_columns, "the model's inputs", input_shapes)
    if label_shapes is not None:
        _check("label", metadata, label_columns, "label_shapes", label_shapes)
    elif output_shapes is not None:
        _check("label", metadata, label_columns, "the model's outputs", output_shapes)


def to_list(var: object, length: int) -> list[Any] | None:
    """A list of some length: a value, or a list of one, as often as needed.

    Args:
        var: None gives None.
        length: of the list.

    Raises:
        UsageError: it is a list of another length.
    """
    if var is None:
        return None
    values = list(var) if isinstance(var, list | tuple) else [var]
    if len(values) == 1:
        return values * length
    if len(values) != length:
        raise UsageError(f"a list of {len(values)} values was given where {length} are needed")
    return values


def _check(
    kind: str,
    metadata: Mapping[str, Mapping[str, Any]],
    columns: Sequence[str],
    what: str,
    shapes: Sequence[Sequence[int]],
) -> None:
    if len(columns) != len(shapes):
        raise UsageError(
            f"there are {len(columns)} {kind} columns {list(columns)}, but {len(shapes)} shapes of "
            f"{what}: {list(shapes)}"
        )
    for column, shape in zip(columns, shapes, strict=True):
        known = metadata.get(column, {}).get("shape")
        if known is None:
            continue
        has = math.prod(known) if isinstance(known, list | tuple) else known
        wants = abs(math.prod(each for each in shape if each is not None))
        if abs(has) != wants:
            raise UsageError(
                f"{kind} column {column!r} has {abs(has)} numbers in a row, but {what} have shape "
                f"{tuple(shape)}, which takes {wants}"
            )
