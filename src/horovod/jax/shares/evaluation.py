"""Runs a program for whole arrays on the elements of one rank.

Optimizers of optax are programs for whole trees. Most of what they compute is element by element: a
rank does that with its own elements. Where a program reduces a whole array to a number, as a norm
does, the ranks reduce theirs together. All else needs elements of other ranks, and is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod._rank.reduction import ReduceOp
from horovod.errors import UsageError
from horovod.jax.shares.steps import Place, Step, flatten
from horovod.jax.shares.values import Partial, Share, Splat, Value, Whole, piece_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._train.division import Division

ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh",
    "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max",
    "min", "mul", "ne", "neg", "nextafter", "not", "optimization_barrier", "or", "pow", "real",
    "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "sub", "tan", "tanh", "xor",
)  # fmt: skip
_REDUCTIONS = {
    "reduce_sum": ReduceOp.SUM,
    "reduce_max": ReduceOp.MAX,
    "reduce_min": ReduceOp.MIN,
    "reduce_and": ReduceOp.MIN,
    "reduce_or": ReduceOp.MAX,
}
_SAME_ORDER = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")


class Evaluation:
    """Runs one program.

    Args:
        division: which elements this rank has.
        reduce: returns the reductions over the ranks of a list of numbers, one operation.
    """

    def __init__(
        self, division: Division, reduce: Callable[[list[Any], ReduceOp], list[Any]]
    ) -> None:
        self._division = division
        self._reduce = reduce

    def run(self, program: Any, values: Sequence[Value]) -> list[Value]:
        """Return the results of a program.

        All reductions whose arguments are known together are one operation of the ranks.

        Args:
            program: closed, for whole arrays.
            values: its arguments.

        Raises:
            UsageError: an operation needs elements of other ranks; names it and its line.
        """
        inputs = [
            Place(var.aval, value) for var, value in zip(program.jaxpr.invars, values, strict=True)
        ]
        waiting, outputs = flatten(program, inputs, Whole)
        partial: list[Place] = []
        while waiting or partial:
            rest = []
            for step in waiting:
                if all(_is_known(place) for place in step.inputs):
                    self._run_step(step)
                    partial += [p for p in step.outputs if isinstance(p.value, Partial)]
                else:
                    rest.append(step)
            waiting = rest
            self._complete(partial)
            partial = []
        return [place.value for place in outputs]

    def _complete(self, places: list[Place]) -> None:
        """Let the ranks reduce their shares of some numbers."""
        for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN):
            chosen = [p for p in places if isinstance(p.value, Partial) and p.value.op is op]
            if chosen:
                sent = [_as_number(place.value.scalar) for place in chosen]
                for place, got in zip(chosen, self._reduce(sent, op), strict=True):
                    place.value = Whole(got.astype(place.aval.dtype))

    def _run_step(self, step: Step) -> None:
        values = [place.value for place in step.inputs]
        name = step.eqn.primitive.name
        if not any(isinstance(value, Share) for value in values):
            results = self._without_shares(step, values)
        elif name in ELEMENTWISE:
            results = self._element_by_element(step, values)
        elif name in _SAME_ORDER and self._keeps_order(step):
            results = [Share(values[0].piece, step.outputs[0].aval.shape)]
        elif name in _REDUCTIONS and _reduces_to_number(step):
            piece = _bind(step, [values[0].piece], axes=(0,))
            results = [Partial(piece[0], _REDUCTIONS[name])]
        elif name == "dot_general" and self._is_inner_product(step):
            pieces = [piece_of(value, self._division) for value in values]
            numbers = (((0,), (0,)), ((), ()))
            results = [Partial(_bind(step, pieces, dimension_numbers=numbers)[0], ReduceOp.SUM)]
        elif name == "cond":
            results = self._branch(step, values)
        else:
            raise _refusal(step)
        for place, value in zip(step.outputs, results, strict=True):
            place.value = value

    def _without_shares(self, step: Step, values: list[Value]) -> list[Value]:
        name = step.eqn.primitive.name
        shapes = [place.aval.shape for place in step.outputs]
        is_splat = any(isinstance(value, Splat) for value in values)
        if name == "broadcast_in_dim" and shapes[0] and not step.inputs[0].aval.shape:
            return [Splat(whole_of(values[0]), shapes[0])]
        if is_splat and name in _SAME_ORDER and isinstance(values[0], Splat):
            scalar = values[0].scalar
            return [Splat(scalar, shapes[0]) if shapes[0] else Whole(scalar)]
        if is_splat and name in ELEMENTWISE:
            scalars = [_scalar_of(value) for value in values]
            if all(each is not None for each in scalars):
                found = zip(_bind(step, scalars), shapes, strict=True)
                return [Splat(scalar, shape) for scalar, shape in found]
        return [Whole(array) for array in _bind(step, [whole_of(value) for value in values])]

    def _element_by_element(self, step: Step, values: list[Value]) -> list[Value]:
        operands = [
            place.value.array if not place.aval.shape else piece_of(place.value, self._division)
            for place in step.inputs
        ]
        found = zip(_bind(step, operands), step.outputs, strict=True)
        return [Share(piece, place.aval.shape) for piece, place in found]

    def _keeps_order(self, step: Step) -> bool:
        before, after = step.inputs[0].aval, step.outputs[0].aval
        return (
            before.size == after.size
            and len(after.shape) > 0
            and not (step.eqn.params.get("dimensions") and step.eqn.primitive.name == "reshape")
        )

    def _is_inner_product(self, step: Step) -> bool:
        (left, right), (left_batch, _) = step.eqn.params["dimension_numbers"]
        one, other = (place.aval.shape for place in step.inputs)
        return (
            one == other
            and not left_batch
            and tuple(left) == tuple(right)
            and (len(left) == len(one))
        )

    def _branch(self, step: Step, values: list[Value]) -> list[Value]:
        """Choose a program by a number that all ranks have; both leave arrays in the same form."""
        chosen, *operands = step.inputs
        kinds = [type(place.value) for place in operands]
        shapes = [place.aval.shape for place in operands]
        arrays = [
            place.value.piece if isinstance(place.value, Share) else whole_of(place.value)
            for place in operands
        ]

        def program_of(closed: Any) -> Callable[..., list[Any]]:
            def run(*given: Any) -> list[Any]:
                known: list[Value] = [
                    Share(array, shape) if kind is Share else Whole(array)
                    for array, kind, shape in zip(given, kinds, shapes, strict=True)
                ]
                results = self.run(closed, known)
                return [
                    piece_of(value, self._division) if place.aval.shape else whole_of(value)
                    for value, place in zip(results, step.outputs, strict=True)
                ]

            return run

        branches = [program_of(closed) for closed in step.eqn.params["branches"]]
        got = jax.lax.switch(chosen.value.array.astype(jnp.int32), branches, *arrays)
        return [
            Share(array, place.aval.shape) if place.aval.shape else Whole(array)
            for array, place in zip(got, step.outputs, strict=True)
        ]


def _reduces_to_number(step: Step) -> bool:
    given = step.inputs[0].aval
    # Of integers, these are reductions bit by bit.
    is_logical = step.eqn.primitive.name in ("reduce_and", "reduce_or")
    all_axes = len(step.eqn.params["axes"]) == given.ndim
    return all_axes and (given.dtype == np.bool_ or not is_logical)


def _is_known(place: Place) -> bool:
    return place.value is not None and not isinstance(place.value, Partial)


def _scalar_of(value: Value) -> Any:
    """Return what all elements of a value are equal to; None if that is unknown."""
    if isinstance(value, Splat):
        return value.scalar
    array = whole_of(value)
    return None if jnp.ndim(array) else array


def _as_number(scalar: Any) -> Any:
    """Return a scalar as the engine reduces it: it has no order of bool."""
    return scalar.astype(jnp.int32) if scalar.dtype == np.bool_ else scalar


def _bind(step: Step, operands: list[Any], **changes: Any) -> list[Any]:
    primitive = step.eqn.primitive
    found = primitive.bind(*operands, **{**step.eqn.params, **changes})
    return list(found) if primitive.multiple_results else [found]


def _refusal(step: Step) -> UsageError:
    name = step.eqn.primitive.name
    shape = next(place.value.shape for place in step.inputs if isinstance(place.value, Share))
    return UsageError(
        f"shard_state=True: the optimizer computes {name!r} of an array of shape {shape} in "
        f"{step.line}, for which a rank needs the elements of the others. A rank can compute "
        "element by element, and reduce an array to one number, as norms do: use another "
        "transform, or leave shard_state out"
    )
