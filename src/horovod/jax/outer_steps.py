"""The parameters that all ranks share while each of them trains alone, as a part of a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod._rank import context
from horovod._rank.reduction import ReduceOp
from horovod._train.optimizer_options import reduces
from horovod._train.outer_schedule import divide_into_fragments
from horovod._train.process_set import group_of
from horovod.errors import UsageError
from horovod.jax.digests import check_equal
from horovod.jax.gradients import reduce_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._train.compression import CompressorLike
    from horovod._train.outer_schedule import OuterSchedule
    from horovod._train.process_set import ProcessSet

_HALF = ("float16", "bfloat16")


class LocalStepsState(NamedTuple):
    """The state of what :func:`horovod.jax.LocalSGD` and :func:`horovod.jax.DiLoCo` return.

    Attributes:
        inner_state: of the optimizer that each rank has for itself.
        outer: the parameters that all ranks share, as a tree like that of the parameters, in
            float32 for half precision. They have the same bits on all ranks, once a step was taken.
        outer_state: of the outer optimizer, for each fragment; None for LocalSGD.
        num_steps: local steps so far, int32.
        num_alone: of them, those since all parameters were equal on all ranks, int32.
        has_begun: whether ``outer`` counts, int32.
    """

    inner_state: Any
    outer: Any
    outer_state: Any
    num_steps: Any
    num_alone: Any
    has_begun: Any


@dataclass(frozen=True)
class OuterSteps:
    """Takes local steps, and brings the ranks together when it is time.

    Only changes are averaged, never parameters, so that a rank which has joined counts as one that
    has changed nothing.

    Attributes:
        inner: the optimizer of each rank, with extra arguments.
        optimizer: steps the shared parameters by the negative average change; None adds the change.
        schedule: when to exchange what.
        process_set: the ranks that take part.
        compression: how changes travel.
        name: what the operations are called after.
    """

    inner: Any
    optimizer: Any
    schedule: OuterSchedule
    process_set: ProcessSet
    compression: CompressorLike
    name: str

    def init(self, params: Any) -> LocalStepsState:
        """Make a state; the first step takes the parameters as the shared ones.

        Raises:
            UsageError: a parameter is no floating-point array, or there are too few of them.
        """
        _check_floats(params)
        outer = jax.tree.map(_wide, params)
        leaves = jax.tree.leaves(outer)
        states = None
        if self.optimizer is not None:
            states = tuple(
                self.optimizer.init([leaves[i] for i in part]) for part in self._parts(leaves)
            )
        else:
            self._parts(leaves)  # raises
        # Not one array three times, which a program could not be given as donated ones.
        counters = [jnp.zeros((), jnp.int32) for _ in range(3)]
        return LocalStepsState(self.inner.init(params), outer, states, *counters)

    def update(
        self, grads: Any, state: LocalStepsState, params: Any = None, **extra: Any
    ) -> tuple[Any, LocalStepsState]:
        """Take a step by this rank's gradients, and exchange changes if it is time.

        Args:
            grads: of this rank.
            state: what :meth:`init` or the last update returned.
            params: the parameters, which are needed.
            extra: what the optimizer takes besides.

        Returns:
            Updates, as of any transformation, and the next state.

        Raises:
            UsageError: ``params`` was left out.
            ReplicasDivergedError: at the first step, if the ranks have different parameters.
            HorovodInternalError, or JaxRuntimeError in a jitted program: the job failed.
        """
        if params is None:
            raise UsageError(
                "LocalSGD and DiLoCo need the parameters: update(grads, state, params)"
            )
        state = self._begun(state, params)
        updates, inner_state = self.inner.update(grads, state.inner_state, params, **extra)
        local = jax.tree.leaves(jax.tree.map(lambda p, u: _sum(p, u), params, updates))
        before, structure = jax.tree.flatten(params)
        steps = jax.tree.map(_as_update, jax.tree.leaves(updates), before)
        num_steps = state.num_steps + 1
        outer, states = jax.tree.leaves(state.outer), state.outer_state
        alone = state.num_alone + 1
        for fragment, part in enumerate(self._parts(outer)):
            since = num_steps - self.schedule.first_start(fragment)
            operands = (
                [steps[i] for i in part], [outer[i] for i in part], _state_of(states, fragment),
                since // self.schedule.every,
            )  # fmt: skip
            exchange = self._exchange_in_step(
                fragment, part, [local[i] for i in part], [before[i] for i in part]
            )
            is_due = since % self.schedule.every == 0
            new_steps, new_outer, new_state = _if(is_due, exchange, lambda *o: o[:3], *operands)
            for i, step, parameter in zip(part, new_steps, new_outer, strict=True):
                steps[i], outer[i] = step, parameter
            states = _replaced(states, fragment, new_state)
            if self.schedule.fragments == 1:
                alone = jnp.where(is_due, 0, alone)
        shared = jax.tree.unflatten(jax.tree.structure(state.outer), outer)
        return jax.tree.unflatten(structure, steps), LocalStepsState(
            inner_state, shared, states, num_steps, alone, state.has_begun
        )

    def synchronize(self, params: Any, state: LocalStepsState) -> tuple[Any, LocalStepsState]:
        """Return parameters that are the same on all ranks, and their state; collective.

        Call it before the model is evaluated or saved, as the steps since the last exchange have
        changed only the parameters of the rank that took them.

        Args:
            params: of this rank.
            state: its state.

        Raises:
            ReplicasDivergedError: before the first step, if the ranks have different parameters.
            HorovodInternalError, or JaxRuntimeError in a jitted program: the job failed.
        """
        state = self._begun(state, params)
        local, structure = jax.tree.flatten(params)

        def exchange(outer: list[Any], states: Any) -> tuple[list[Any], Any]:
            outer = list(outer)
            for fragment, part in enumerate(self._parts(outer)):
                kept = [outer[i] for i in part]
                mine = [local[i] for i in part]
                new_outer, new_state = self._outer_step(
                    fragment, mine, kept, _state_of(states, fragment)
                )
                for i, parameter in zip(part, new_outer, strict=True):
                    outer[i] = parameter
                states = _replaced(states, fragment, new_state)
            return outer, states

        outer, states = _if(
            state.num_alone > 0, exchange, lambda *o: o,
            jax.tree.leaves(state.outer), state.outer_state,
        )  # fmt: skip
        # Not the same arrays, which a program could not be given as donated ones.
        common = [
            jnp.array(o, jnp.result_type(p), copy=True) for o, p in zip(outer, local, strict=True)
        ]
        return jax.tree.unflatten(structure, common), state._replace(
            outer=jax.tree.unflatten(jax.tree.structure(state.outer), outer),
            outer_state=states,
            num_alone=jnp.zeros_like(state.num_alone),
        )

    def _begun(self, state: LocalStepsState, params: Any) -> LocalStepsState:
        """Take the parameters as the shared ones before the first step, if they are equal."""
        _check_floats(params)
        leaves, structure = jax.tree.flatten(params)

        def begin(_: Any, __: Any) -> tuple[list[Any], Any]:
            outer = [_wide(leaf) for leaf in leaves]
            known = self._compared(leaves, "begin", "before the first local step, ", params)
            return outer, jnp.int32(1) + known

        outer, has_begun = _if(
            state.has_begun == 0, begin, lambda *o: o,
            jax.tree.leaves(state.outer), state.has_begun,
        )  # fmt: skip
        return state._replace(outer=jax.tree.unflatten(structure, outer), has_begun=has_begun)

    def _exchange_in_step(
        self, fragment: int, part: Sequence[int], local: list[Any], before: list[Any]
    ) -> Callable[..., tuple[list[Any], list[Any], Any]]:
        """What a step does with a fragment that is due.

        Args:
            fragment: its number.
            part: which parameters it holds.
            local: these after the local step.
            before: and before it.
        """
        every = context.settings().check_in_sync_steps

        def exchange(
            steps: list[Any], outer: list[Any], state: Any, count: Any
        ) -> tuple[list[Any], list[Any], Any]:
            outer, state = self._outer_step(fragment, local, outer, state)
            if every:
                checked = _if(
                    (count + 1) % every == 0,
                    lambda arrays: self._compared(arrays, f"check.{fragment}", "", None, part),
                    lambda _: jnp.int32(0),
                    outer,
                )
                outer = [o + checked.astype(o.dtype) for o in outer]
            steps = [
                _difference(o, b).astype(s.dtype)
                for s, o, b in zip(steps, outer, before, strict=True)
            ]
            return steps, outer, state

        return exchange

    def _outer_step(
        self, fragment: int, local: list[Any], outer: list[Any], state: Any
    ) -> tuple[list[Any], Any]:
        """Average the changes of a fragment, and step its shared parameters."""
        changes = [
            jnp.asarray(mine).astype(o.dtype) - o for mine, o in zip(local, outer, strict=True)
        ]
        changes = reduce_gradients(
            changes, op=ReduceOp.AVERAGE, compression=self.compression,
            process_set=self.process_set, name=f"{self.name}.{fragment}",
        )  # fmt: skip
        if self.optimizer is None:
            return [o + change for o, change in zip(outer, changes, strict=True)], state
        slopes = [-change for change in changes]
        updates, new_state = self.optimizer.update(slopes, state, outer)
        stepped = [_sum(o, u) for o, u in zip(outer, updates, strict=True)]
        return stepped, jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), new_state, state)

    def _compared(
        self, arrays: list[Any], name: str, what: str, params: Any, part: Sequence[int] = ()
    ) -> Any:
        """Return 0 once arrays have been found to be the same on all ranks."""
        if not arrays or not reduces(group_of(self.process_set)):
            return jnp.int32(0)
        if params is not None:
            pairs, _ = jax.tree_util.tree_flatten_with_path(params)
            names = [jax.tree_util.keystr(path) for path, _ in pairs]
        else:
            names = [f"outer parameter {i}" for i in part]
        return check_equal(arrays, names, self.process_set, f"{self.name}.{name}", what)

    def _parts(self, outer: Sequence[Any]) -> list[list[int]]:
        sizes = [leaf.size * leaf.dtype.itemsize for leaf in outer]
        return divide_into_fragments(sizes, self.schedule.fragments)


def _if(condition: Any, then: Any, otherwise: Any, *operands: Any) -> Any:
    """Return what one of two functions returns, in a program or outside of one."""
    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, then, otherwise, *operands)
    # Outside of jit, JAX would compile both branches each time.
    return (then if condition else otherwise)(*operands)


def _check_floats(params: Any) -> None:
    pairs, _ = jax.tree_util.tree_flatten_with_path(params)
    for path, leaf in pairs:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise UsageError(
                f"the parameter {jax.tree_util.keystr(path)} is {jnp.result_type(leaf)}: LocalSGD "
                "and DiLoCo average floating-point parameters, so keep others out of the tree"
            )


def _wide(leaf: Any) -> Any:
    """Return a copy, in float32 of half precision: the buffer of a parameter may be donated."""
    dtype = jnp.result_type(leaf)
    return jnp.array(leaf, jnp.float32 if dtype.name in _HALF else dtype, copy=True)


def _sum(parameter: Any, update: Any) -> Any:
    """Return what ``optax.apply_updates`` makes of a parameter."""
    return jnp.asarray(parameter + update).astype(jnp.result_type(parameter))


def _as_update(update: Any, parameter: Any) -> Any:
    """Return an update in a dtype that can lead to the shared parameter."""
    dtype = jnp.promote_types(jnp.result_type(update), _wide_dtype(parameter))
    return jnp.asarray(update, dtype)


def _wide_dtype(parameter: Any) -> Any:
    dtype = jnp.result_type(parameter)
    return jnp.dtype("float32") if dtype.name in _HALF else dtype


def _difference(outer: Any, before: Any) -> Any:
    """Return the update that leads from a parameter to the shared one."""
    target = outer.astype(jnp.result_type(before)).astype(outer.dtype)
    return target - jnp.asarray(before).astype(outer.dtype)


def _state_of(states: Any, fragment: int) -> Any:
    return None if states is None else states[fragment]


def _replaced(states: Any, fragment: int, state: Any) -> Any:
    return None if states is None else (*states[:fragment], state, *states[fragment + 1 :])
