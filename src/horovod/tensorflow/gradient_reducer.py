"""Reduces lists of gradients: what tapes, optimizers and local aggregation have in common."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from horovod._rank import context
from horovod._rank.reduction import Reduction
from horovod._train.compression import always_quantizes
from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.process_set import global_process_set, group_of
from horovod._train.reduce_op import Adasum, Average, Sum
from horovod._train.structure import Structure, without_numbers
from horovod.errors import UsageError
from horovod.tensorflow import calls, error_feedback, reductions
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.error_feedback import ErrorFeedback
from horovod.tensorflow.gradient_groups import members_of, variable_key
from horovod.tensorflow.rank_ops import is_member_op, num_members_op
from horovod.tensorflow.xla import refuse_xla

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from horovod.tensorflow.reduction_settings import ReductionSettings

_LINEAR = (Average, Sum, Adasum)
_PLACE_AND_NAME = re.compile(r"(?:^|\.)(\d+\..+)$")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.]")

_numbers = NameNumbers()


class GradientReducer:
    """Reduces gradients over the ranks of a process set.

    Args:
        settings: how.
        numbered: for an owner that lives as long as the training, such as an optimizer: operations
            are named after the owner and the place of the gradient, ``<name>_Allreduce.3.kernel``,
            wherever in a graph they stand. Otherwise they are named by their scope in the graph.

    Attributes:
        settings: see above.
        weight: a scalar variable that multiplies this rank's gradients before they are averaged,
            so that they may count more or less than those of other ranks; None for 1. Those of
            weight 0 count nothing, in sums neither, whatever their values are.
    """

    def __init__(self, settings: ReductionSettings, *, numbered: bool = False) -> None:
        self.settings = settings
        self.weight: Any = None
        self._numbered = numbered
        self._operation = f"{settings.name}_Allreduce"
        self._number = JobNumber(_numbers, [self._operation])
        self._local: set[Hashable] = set()
        self._local_layers: list[Any] = []
        self._feedback: ErrorFeedback | None = None
        if always_quantizes(settings.compression) and error_feedback.works_here():
            self._feedback = ErrorFeedback() if numbered else error_feedback.of_tapes()

    def register_local(self, variable: Any) -> None:
        """Leaves the gradient of a variable out of the reduction.

        Args:
            variable: a ``tf.Variable``, Keras variable, or tensor that a tape watches.
        """
        self._local.add(variable_key(variable))

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Leaves the gradients of all weights of Keras layers out, also of layers yet to be built.

        Args:
            layers: what has ``trainable_weights``.
        """
        self._local_layers += layers

    def is_local(self, variable: Any) -> bool:
        """Whether the gradient of a variable is left out."""
        return variable_key(variable) in self.local_keys()

    @as_written
    def reduce(
        self, gradients: Iterable[Any], variables: Iterable[Any], generic_names: bool = False
    ) -> list[Any]:
        """Reduces gradients; all ranks of the process set must call.

        Args:
            gradients: tensors, ``tf.IndexedSlices`` or None, which stays None.
            variables: to which they belong.
            generic_names: name the operations ``grad_<place>``, for ranks whose graphs or
                variables have different names.

        Returns:
            As many gradients. They are the given ones if this rank does not belong to the set, or,
            in eager mode, is alone in it. A graph finds out when it runs, so it stays right in a
            later job of other ranks.

        Raises:
            UsageError: the process set is not registered, or XLA would have to compile this.
            NotInitializedError: ``hvd.init()`` was not called.
        """
        gradients, variables = list(gradients), list(variables)
        refuse_xla()
        process_set = self.settings.process_set
        size = group_of(process_set).size
        if tf.executing_eagerly() and (size <= 1 or not process_set.included()):
            return gradients
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        local = self.local_keys()
        shared = [i for i in places if variable_key(variables[i]) not in local]
        reduced = self._reduce_shared(gradients, variables, shared, generic_names)
        own = set(places).difference(shared) if self.settings.scale_local_gradients else ()
        divisor = size if tf.executing_eagerly() or not own else num_members_op(process_set)
        for index in own:
            gradients[index] = _divided(gradients[index], divisor)
        for index, gradient in zip(shared, reduced, strict=True):
            gradients[index] = gradient
        return gradients

    @property
    def local_layers(self) -> Sequence[Any]:
        """The Keras layers whose gradients are left out."""
        return self._local_layers

    def local_keys(self) -> set[Hashable]:
        """The keys of the variables whose gradients are left out."""
        weights = [weight for layer in self._local_layers for weight in layer.trainable_weights]
        return self._local.union(map(variable_key, weights)) if weights else self._local

    def _reduce_shared(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        places: Sequence[int],
        generic_names: bool,
    ) -> list[Any]:
        if not places:
            return []
        mine = [gradients[i] for i in places]
        if self.weight is not None and self.settings.op in (Average, Sum):
            # A sum counts each rank that has samples once.
            counts = self.settings.op == Average
            factor = self.weight if counts else tf.cast(self.weight > 0, self.weight.dtype)
            mine = [_times(gradient, factor) for gradient in mine]
        keys = [variable_key(variables[i]) for i in places]
        if generic_names:
            names = [f"grad_{i}" for i in places]
        else:
            names = [f"{i}.{_last_name(variables[i])}" for i in places]
        shapes = tuple(_known_shape(variables[i]) for i in places)
        sizes = [_num_bytes(self.settings, *pair) for pair in zip(mine, shapes, strict=True)]
        prefix = self._numbered_prefix() if self._numbered else ""
        if prefix:
            names = [f"{prefix}.{name}" for name in names]
        plan = _Plan(
            scope="" if prefix or generic_names else f"{self.settings.name}_Allreduce",
            names=tuple(names),
            shapes=shapes,
            members=members_of(self.settings.groups, keys, sizes),
        )
        if self._feedback is None:
            return self._run(plan, mine)
        errors = self._feedback.of([variables[i] for i in places], mine)
        plan = plan._replace(fed=tuple(i for i, error in enumerate(errors) if error is not None))
        held = [self._feedback.kept_by, *(errors[i] for i in plan.fed)] if plan.fed else []
        found = self._run(plan, [*mine, *(variable.read_value() for variable in held)])
        for variable, value in zip(held, found[len(mine) :], strict=True):
            variable.assign(value)
        return found[: len(mine)]

    def _run(self, plan: _Plan, gradients: list[Any]) -> list[Any]:
        if tf.executing_eagerly():
            # As one function, so that all are in flight at once.
            process_set = self.settings.process_set
            size, number = group_of(process_set).size, process_set.process_set_id
            job = context.current().number
            return list(_function(self.settings, plan, size, number, job)(gradients))
        if self.settings.process_set is global_process_set:
            return _reduce(self.settings, plan, gradients)
        return _reduce_on_members(self.settings, plan, gradients)

    def _numbered_prefix(self) -> str:
        number = self._number.within(group_of(self.settings.process_set))
        return self._operation if number == 1 else f"{self._operation}_{number}"


class _Plan(NamedTuple):
    """The facts about some gradients that are known before their values.

    Attributes:
        scope: the scope of their names in the graph; empty if the names alone travel.
        names: of their operations.
        shapes: of their variables, None where unknown.
        members: their places, in groups that are reduced together.
        fed: the places of those with errors. Behind the gradients come, if there are any, the rank
            whose these are, and the errors.
    """

    scope: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    members: tuple[tuple[int, ...], ...]
    fed: tuple[int, ...] = ()


@functools.lru_cache(maxsize=256)
def _function(
    settings: ReductionSettings, plan: _Plan, size: int, number: int | None, job: int
) -> Any:
    """Reduces in a graph, which holds the job's number, and the set's size and number."""
    return tf.function(
        functools.partial(_reduce, settings, plan), autograph=False, reduce_retracing=True
    )


def _reduce_on_members(
    settings: ReductionSettings, plan: _Plan, gradients: Sequence[Any]
) -> list[Any]:
    """In a graph: reduces if this rank belongs to the set when the graph runs."""

    def keep() -> list[Any]:
        kept: list[Any] = tf.nest.map_structure(
            tf.identity, _as_they_travel(settings, plan, gradients), expand_composites=True
        )
        return kept

    # Entered here, where it is told from others of the same name, which branches do not see.
    with tf.name_scope(plan.scope) if plan.scope else contextlib.nullcontext("") as scope:
        inner = plan._replace(scope=scope)
        reduced = tf.cond(
            is_member_op(settings.process_set), lambda: _reduce(settings, inner, gradients), keep
        )
    return list(reduced) if isinstance(reduced, list | tuple) else [reduced]


def _as_they_travel(
    settings: ReductionSettings, plan: _Plan, gradients: Sequence[Any]
) -> list[Any]:
    if not settings.sparse_as_dense:
        return list(gradients)
    count = len(plan.names)
    pairs = zip(gradients[:count], plan.shapes, strict=True)
    return [*(as_dense(gradient, shape) for gradient, shape in pairs), *gradients[count:]]


def _reduce(settings: ReductionSettings, plan: _Plan, gradients: Sequence[Any]) -> list[Any]:
    reduced = _as_they_travel(settings, plan, gradients)
    place_of_error = {place: len(plan.names) + 1 + i for i, place in enumerate(plan.fed)}
    # Slices are several operations, of which the second must not wait for the first.
    alone = len(plan.members) == 1 and not any(isinstance(g, tf.IndexedSlices) for g in reduced)
    with tf.name_scope(plan.scope) if plan.scope else contextlib.nullcontext():
        for members in plan.members:
            first = plan.names[members[0]]
            name = first if len(members) == 1 else f"{first}.and.{len(members) - 1}"
            call = replace(
                calls.call_of(settings.process_set, name, ignore_name_scope=not plan.scope),
                waits_briefly=alone,
                structure=_structure_of([plan.names[i] for i in members]),
            )
            targets = list(members)
            if place_of_error.keys() >= set(members):
                targets += [len(plan.names), *(place_of_error[i] for i in members)]
            # Whose the errors were before the first group, not this rank.
            chosen = [gradients[i] if i == len(plan.names) else reduced[i] for i in targets]
            results = _reduce_together(settings, call, chosen, len(members))
            for index, result in zip(targets, results, strict=True):
                reduced[index] = result
    return _without_unsound_errors(plan, reduced)


def _without_unsound_errors(plan: _Plan, reduced: list[Any]) -> list[Any]:
    """Let the errors be zero if a gradient is infinite or NaN, so that no step should use it."""
    if not plan.fed:
        return reduced
    count = len(plan.names)
    values = [reduced[i] for i in plan.fed]
    values = [tf.abs(each) if each.dtype.is_complex else each for each in values]
    is_sound = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in values])
    errors = [tf.where(is_sound, each, tf.zeros_like(each)) for each in reduced[count + 1 :]]
    return [*reduced[: count + 1], *errors]


def _reduce_together(
    settings: ReductionSettings, call: calls.CollectiveCall, given: list[Any], count: int
) -> list[Any]:
    """Reduce some gradients, which may be followed by whose their errors are, and by these."""
    gradients, errors = given[:count], given[count:]
    factor = settings.predivide_factor
    reduction = Reduction(settings.op)
    are_pairs = [gradient.dtype.is_complex for gradient in gradients]
    if any(are_pairs) and settings.op not in _LINEAR:
        raise UsageError(
            f"op={settings.op.name.title()} of complex gradients has no meaning; use hvd.Average "
            "or hvd.Sum"
        )
    gradients = [_as_floats(gradient) for gradient in gradients]
    # Sparse gradients cannot be scaled on their way, and the average is the same without.
    if factor != 1.0 and not any(isinstance(g, tf.IndexedSlices) for g in gradients):
        reduction = reduction._replace(prescale=1.0 / factor, postscale=factor)
    how = (reduction, settings.compression, settings.device_dense, settings.device_sparse)
    if errors:
        reduced, errors = reductions.reduce_with_errors(call, gradients, *how[:3], errors)
    elif len(gradients) == 1:
        reduced = [reductions.reduce_tensor(call, gradients[0], *how)]
    else:
        reduced = reductions.reduce_tensors(call, gradients, *how)
    pairs = zip(reduced, are_pairs, strict=True)
    whole = [_as_complex(gradient) if is_pair else gradient for gradient, is_pair in pairs]
    return [*whole, *errors]


def _structure_of(names: Sequence[str]) -> Structure | None:
    """Describe which variables go together; the numbers of automatic names may differ by rank."""
    if len(names) < 2:
        return None
    own = [_PLACE_AND_NAME.search(name) for name in names]
    texts = [found.group(1) if found else name for found, name in zip(own, names, strict=True)]
    return Structure.of([without_numbers(text) for text in texts], "gradients")


def as_dense(gradient: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Returns a gradient as a tensor; rows of ``tf.IndexedSlices`` with the same index are added.

    Args:
        gradient: a tensor or ``tf.IndexedSlices``.
        shape: of the variable, None if unknown.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    num_rows = gradient.dense_shape[0] if shape is None else shape[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, num_rows)


def _with_values(gradient: Any, change: Callable[[Any], Any]) -> Any:
    """A gradient with other values, dense or not."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def _divided(gradient: Any, divisor: Any) -> Any:
    return _with_values(gradient, lambda values: values / tf.cast(divisor, values.dtype))


def _times(gradient: Any, factor: Any) -> Any:
    """Return the product; 0 where the weight is 0, even if the gradient is NaN."""

    def change(values: Any) -> Any:
        product = values * tf.cast(factor, values.dtype)
        return tf.where(tf.equal(factor, 0), tf.zeros_like(values), product)

    return _with_values(gradient, change)


def _as_floats(gradient: Any) -> Any:
    """Return a complex gradient as pairs of real numbers, which collectives carry; others as is."""
    if not gradient.dtype.is_complex:
        return gradient

    def change(values: Any) -> Any:
        return tf.stack([tf.math.real(values), tf.math.imag(values)], axis=-1)

    return _with_values(gradient, change)


def _as_complex(gradient: Any) -> Any:
    return _with_values(gradient, lambda values: tf.complex(values[..., 0], values[..., 1]))


def _num_bytes(
    settings: ReductionSettings, gradient: Any, shape: tuple[int, ...] | None
) -> int | None:
    """Return the bytes of a dense gradient, if they are known before its values."""
    is_sparse = isinstance(gradient, tf.IndexedSlices) and not settings.sparse_as_dense
    if is_sparse or shape is None:
        return None
    return int(gradient.dtype.size) * math.prod(shape)


def _known_shape(variable: Any) -> tuple[int, ...] | None:
    shape = tf.TensorShape(variable.shape)
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def _last_name(variable: Any) -> str:
    """The last part of a variable's name; what precedes it may be numbered by each rank."""
    if not any(isinstance(v, tf.Variable) for v in (variable, getattr(variable, "value", None))):
        return "grad"
    name = str(variable.name).rpartition("/")[2].partition(":")[0]
    return _NOT_IN_A_NAME.sub("_", name) or "grad"
