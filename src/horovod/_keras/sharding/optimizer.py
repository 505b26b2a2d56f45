"""Optimizers of Keras 3 that step this rank's elements of all variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from horovod._keras.reducing_optimizer import (
    CallableList,
    ReducingOptimizer,
    share_state,
    wrapped_class,
)
from horovod._keras.sharding.parts import Parts
from horovod._keras.sharding.refusals import refuse_local
from horovod._keras.sharding.whole import mark_as_part
from horovod._train.division import Division
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._keras.reducing_optimizer import Wrapping
    from horovod._keras.sharding.exchange import ShareExchange


class ShardReducer:
    """Reduces nothing by itself; holds the collectives of one optimizer.

    Args:
        exchange: the collectives.
        settings: of the reduction.

    Attributes:
        exchange, settings: see above.
        local_layers: none.
    """

    local_layers: Sequence[Any] = ()

    def __init__(self, exchange: ShareExchange, settings: Any) -> None:
        self.exchange = exchange
        self.settings = settings

    def register_local(self, variable: Any) -> None:
        """Refuse to leave a gradient out.

        Raises:
            UsageError: always.
        """
        raise refuse_local()

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Refuse to leave gradients of layers out.

        Raises:
            UsageError: there are layers.
        """
        if list(layers):
            raise refuse_local()

    def local_keys(self) -> set[Any]:
        """Return the keys of variables whose gradients are left out: none."""
        return set()

    def reduce(self, gradients: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        """Return the gradients as they are: parts of them are reduced."""
        return list(gradients)


class ShardingOptimizer(ReducingOptimizer):
    """Takes a step in ``apply`` with this rank's elements, then gathers the variables.

    The plain optimizer sees variables with these elements alone, and makes its slots for them.
    """

    _parts: Parts | None = None
    _reducer: ShardReducer

    @property
    def variables(self) -> CallableList[Any]:
        """The variables of the optimizer, in shares; a list that can also be called."""
        return CallableList(super().variables)  # type: ignore[misc]  # of the plain class

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the slots for this rank's elements.

        Args:
            variables: what it trains, whole.

        Raises:
            UsageError: a variable is to be overwritten by its gradient.
        """
        plain: Any = super()
        variables = list(variables)
        for variable in variables:
            if getattr(variable, "overwrite_with_gradient", False):
                raise UsageError(
                    f"shard_state=True: {variable.path} is overwritten by its gradient, as float8 "
                    "training does: leave shard_state out"
                )
        parts = Parts(variables, Division.of(self._reducer.settings.process_set))
        object.__setattr__(self, "_parts", parts)
        if excluded := vars(self).get("_exclude_from_weight_decay"):
            for whole, part in zip(variables, parts.variables, strict=True):
                if id(whole) in excluded:
                    excluded.add(id(part))
        plain.build(parts.variables)
        # As a jitted step maps values to them. By their keys, slots are found for parts.
        object.__setattr__(self, "_trainable_variables", variables)  # not tracked as its own

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Steps this rank's elements by the gradients of all ranks, then gathers the variables.

        Args:
            grads: of this rank; all ranks must call with gradients of the same variables.
            trainable_variables: to which they belong; those of the last ``build`` if None.

        Raises:
            UsageError: a gradient is sparse, or the job has changed since ``build``.
            HorovodInternalError: the job failed.
        """
        plain: Any = super()
        this: Any = self
        grads = list(grads)
        variables = self._variables_of(grads, trainable_variables)
        if variables is None:
            plain.apply(grads, trainable_variables)  # which says what is wrong
            return
        if not this.built:
            with keras.name_scope(this.name):
                this.build(variables)
        parts = self._checked_parts()
        found = [i for i, grad in enumerate(grads) if grad is not None]
        names = [f"{i:06}.{variables[i].name}" for i in found]
        grads, variables = [grads[i] for i in found], [variables[i] for i in found]
        exchange = self._reducer.exchange
        pieces = exchange.scatter(self._dense(grads, variables), names, parts.division)
        own = parts.take(variables)
        plain.apply(pieces, own)
        shapes = [tuple(v.shape) for v in variables]
        whole = exchange.gather([p.value for p in own], shapes, names, parts.division)
        for variable, value in zip(variables, whole, strict=True):
            variable.assign(value)
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    def save_own_variables(self, store: Any) -> None:
        """Save the whole state, which :func:`horovod.keras.save_model` has gathered.

        Raises:
            UsageError: it was not gathered.
        """
        plain: Any = super()
        this: Any = self
        if not this.built:
            plain.save_own_variables(store)
            return
        whole = vars(self).get("_whole")
        if whole is None:
            raise UsageError(
                "shard_state=True: this rank has a share of the optimizer's state, so model.save() "
                "cannot save it: call hvd.save_model(model, filepath) on all ranks, or save the "
                "weights alone, model.save_weights(filepath)"
            )
        for index, value in enumerate(whole):
            store[str(index)] = value

    def load_own_variables(self, store: Any) -> None:
        """Take this rank's share of a whole state.

        Args:
            store: what Keras saved of an optimizer without Horovod.
        """
        held = self.variables
        if len(store.keys()) != len(held):
            plain: Any = super()
            plain.load_own_variables(store)  # which says so
            return
        self.divide([store[str(index)] for index in range(len(held))])

    def divide(self, values: Sequence[Any]) -> None:
        """Give each variable this rank's elements of a whole value.

        Args:
            values: arrays, in the order of ``variables``; those of the shape of their variable, as
                numbers are, are assigned as they are.
        """
        parts = self._built_parts()
        for variable, value in zip(self.variables, values, strict=True):
            is_part = id(variable) in parts.slots
            variable.assign(parts.division.piece_of(np.asarray(value)) if is_part else value)

    def gather(self) -> list[Any]:
        """Return whole values of all variables, as arrays of NumPy; collective.

        Raises:
            HorovodInternalError: the job failed.
        """
        parts = self._checked_parts()
        found = []
        for index, variable in enumerate(self.variables):
            value = variable.value
            if (shape := parts.slots.get(id(variable))) is not None:
                exchange = self._reducer.exchange
                (value,) = exchange.gather([value], [shape], [f"{index}"], parts.division)
            found.append(keras.ops.convert_to_numpy(value))
        return found

    def add_variable_from_reference(
        self, reference_variable: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Makes a slot for a variable, and notes whether it is for a part of one."""
        plain: Any = super()
        made = plain.add_variable_from_reference(reference_variable, *args, **kwargs)
        if self._parts is not None:
            shape = self._parts.whole_shape_of(reference_variable)
            if shape is not None:
                self._parts.slots[id(made)] = shape
                mark_as_part(made)
        return made

    def whole_zeros(self) -> list[Any]:
        """Return zeros of the shapes and dtypes of what :meth:`gather` returns."""
        slots = self._built_parts().slots
        return [
            np.zeros(slots.get(id(v), tuple(v.shape)), keras.ops.convert_to_numpy(v.value).dtype)
            for v in self.variables
        ]

    def fit_to_job(self) -> None:
        """Make room for the elements that this rank has in the current job; values are lost."""
        division = Division.of(self._reducer.settings.process_set)
        parts = self._built_parts()
        if parts.division != division:
            parts.move_to(division, list(self.variables))

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Clip parts of gradients by the norms of whole ones."""
        plain: Any = super()
        this: Any = self
        if not (this.clipnorm or this.global_clipnorm):
            return list(plain._clip_gradients(grads))
        ops = keras.ops
        squares = ops.stack([ops.sum(ops.square(grad)) for grad in grads])
        squares = self._reducer.exchange.total(squares, self._checked_parts().division)
        if this.global_clipnorm:
            norms = [ops.sqrt(ops.sum(squares))] * len(grads)
            limit = this.global_clipnorm
        else:
            norms = [ops.sqrt(squares[i]) for i in range(len(grads))]
            limit = this.clipnorm
        # As Keras does, an infinite norm makes all gradients NaN.
        return [
            grad * ops.cast(limit / ops.maximum(norm, limit) + (norm - norm), grad.dtype)
            for grad, norm in zip(grads, norms, strict=True)
        ]

    def _dense(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        dense = self._reducer.exchange.dense
        return [dense(grad, variable) for grad, variable in zip(grads, variables, strict=True)]

    def _built_parts(self) -> Parts:
        if self._parts is None:
            raise UsageError("shard_state=True: build the optimizer first")
        return self._parts

    def _checked_parts(self) -> Parts:
        parts = self._built_parts()
        division = Division.of(self._reducer.settings.process_set)
        if parts.division != division:
            raise UsageError(
                f"the state of the optimizer is the share of rank {parts.division.rank} of "
                f"{parts.division.size}, but this is rank {division.rank} of {division.size}: "
                "save the model by hvd.save_model before the job changes, and load it again"
            )
        return parts


def wrap_in_shares(added: type[ReducingOptimizer], optimizer: Any, wrapping: Wrapping) -> Any:
    """Make a distributed optimizer whose state is in shares.

    Args:
        added: what stands in front of the class of the optimizer.
        optimizer: a plain one. If it has a state, it is divided, and the optimizer is left alone.
        wrapping: what to do.
    """
    made = wrapped_class(added, type(optimizer), wrapping)
    if not optimizer.built:
        wrapped = share_state(optimizer, made)
        wrapped._begin()
        return wrapped
    values = [keras.ops.convert_to_numpy(variable.value) for variable in optimizer.variables]
    again = share_state(type(optimizer).from_config(optimizer.get_config()), made)
    again._begin()
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            object.__setattr__(again, name, value)
    again.build(optimizer._trainable_variables)
    again.divide(values)
    return again
