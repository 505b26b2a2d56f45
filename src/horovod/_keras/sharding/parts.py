"""The elements of a model's variables that this rank's optimizer trains."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import keras

from horovod._keras.reducer import key_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from horovod._train.division import Division


# The first versions of Keras 3 have no such argument; there, casts end with a layer's call.
_HAS_CASTS = "autocast" in inspect.signature(keras.Variable.__init__).parameters
_NO_CASTS: dict[str, Any] = {"autocast": False} if _HAS_CASTS else {}


class Parts:
    """For each variable, one with this rank's elements, in one dimension and of the same name.

    Args:
        variables: of a model.
        division: which elements this rank has.

    Attributes:
        division: see above.
        variables: those with the elements of this rank, in the order of the given ones.
        slots: the whole shapes of the optimizer's variables in shares, by the id of the variable.
    """

    def __init__(self, variables: Sequence[Any], division: Division) -> None:
        self.division = division
        self.variables = [_part_of(variable, division) for variable in variables]
        self._part_of: dict[Hashable, Any] = {
            key_of(whole): part for whole, part in zip(variables, self.variables, strict=True)
        }
        self._shape_of = {
            key_of(part): tuple(whole.shape)
            for whole, part in zip(variables, self.variables, strict=True)
        }
        self.slots: dict[int, tuple[int, ...]] = {}

    def whole_shape_of(self, part: Any) -> tuple[int, ...] | None:
        """Return the shape of the variable that a part is of; None if it is no part."""
        return self._shape_of.get(key_of(part))

    def move_to(self, division: Division, slots: Sequence[Any]) -> None:
        """Let parts, and slots for them, have other elements; their values become zero.

        Args:
            division: which elements this rank has now.
            slots: all variables of the optimizer.
        """
        self.division = division
        resized = [(part, self._shape_of[key_of(part)]) for part in self.variables]
        resized += [(slot, self.slots[id(slot)]) for slot in slots if id(slot) in self.slots]
        for variable, shape in resized:
            begin, end = division.range_of(shape)
            variable._shape = (end - begin,)
            variable._initialize(keras.ops.zeros((end - begin,), variable.dtype))

    def of(self, variables: Sequence[Any]) -> list[Any]:
        """Return the parts of some variables, or those themselves that have none."""
        return [self._part_of.get(key_of(variable), variable) for variable in variables]

    def take(self, variables: Sequence[Any]) -> list[Any]:
        """Return the parts of some variables, with the values that these have now."""
        parts = self.of(variables)
        for part, variable in zip(parts, variables, strict=True):
            begin, end = self.division.range_of(tuple(variable.shape))
            part.assign(keras.ops.reshape(variable.value, (-1,))[begin:end])
        return parts


def _part_of(variable: Any, division: Division) -> Any:
    begin, end = division.range_of(tuple(variable.shape))
    part = keras.Variable(
        "zeros", shape=(end - begin,), dtype=variable.dtype, trainable=False, name=variable.name,
        **_NO_CASTS,
    )  # fmt: skip
    # Slots are named after it, and some variables are without weight decay by their names.
    part._path = variable.path
    return part
