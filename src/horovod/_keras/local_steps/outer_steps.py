"""The variables that all ranks share while each of them trains alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from horovod._rank import context
from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.optimizer_options import reduces
from horovod._train.outer_schedule import divide_into_fragments
from horovod._train.process_set import group_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horovod._keras.local_steps.backend import LocalStepsBackend
    from horovod._rank.group import Group

_HALF = ("float16", "bfloat16")
_numbers = NameNumbers()


class OuterSteps:
    """Exchanges what local steps have changed, and applies the average to the outer variables.

    Only changes are averaged, never variables, so that a rank which has joined counts as one that
    has changed nothing. All of its state is in variables, which a compiled step carries along.

    Args:
        backend: runs the exchanges.

    Attributes:
        outer: the outer variables, float32 for variables of half precision; none before
            :meth:`build`.
        optimizer: steps the outer variables by the negative average change; None adds the change.
        num_ranks: that took part in the last exchange.
        local_layers: none.
    """

    local_layers: Sequence[Any] = ()

    def __init__(self, backend: LocalStepsBackend) -> None:
        self._backend = backend
        settings = backend.settings
        self.settings = settings
        self._number = JobNumber(_numbers, [settings.name])
        self._local: list[Any] = []
        self._fragments: list[list[int]] = []
        self._counters: list[Any] = []
        self.outer: list[Any] = []
        self.num_ranks = 1
        given = settings.outer
        self.optimizer = None if given is None else type(given).from_config(given.get_config())

    @property
    def variables(self) -> list[Any]:
        """All variables of this state; none before :meth:`build`."""
        of_optimizer = [] if self.optimizer is None else list(self.optimizer.variables)
        return [*self._counters, *self.outer, *of_optimizer] if self._counters else []

    def build(self, variables: Sequence[Any]) -> None:
        """Make the outer variables.

        Args:
            variables: what the optimizer trains.

        Raises:
            UsageError: there are fewer variables than fragments, or one is overwritten by its
                gradient.
        """
        if self._counters:
            return
        for variable in variables:
            if getattr(variable, "overwrite_with_gradient", False):
                raise UsageError(
                    f"LocalSGD and DiLoCo: {variable.path} is overwritten by its gradient, as "
                    "float8 training does, so its changes cannot be averaged"
                )
        dtypes = [_wide(variable) for variable in variables]
        sizes = [
            int(np.prod(v.shape)) * np.dtype(dtype).itemsize
            for v, dtype in zip(variables, dtypes, strict=True)
        ]
        self._fragments = divide_into_fragments(sizes, self.settings.schedule.fragments)
        self._local = list(variables)
        self.outer = [
            keras.Variable("zeros", tuple(v.shape), dtype, trainable=False, name=f"outer_{v.name}")
            for v, dtype in zip(variables, dtypes, strict=True)
        ]
        with self._backend.counting():
            self._counters = [
                keras.Variable("zeros", (), "int32", trainable=False, name=name)
                for name in ("has_begun", "num_steps", "num_alone")
            ]
        if self.optimizer is not None:
            self.optimizer.build(self.outer)

    def begin(self) -> None:
        """Take the variables as the outer ones, before the first local step.

        Raises:
            ReplicasDivergedError: the ranks have other variables, so that changes cannot be added;
                in a compiled step an error of the framework with the same text.
            HorovodInternalError: the job failed.
        """
        has_begun = self._counters[0]

        def take() -> None:
            known = self._compare(
                self._local, range(len(self._local)), "begin", "before the first local step, "
            )
            for outer, local in zip(self.outer, self._local, strict=True):
                outer.assign(self._backend.copied(keras.ops.cast(local.value, outer.dtype)))
            with self._backend.counting():
                has_begun.assign(keras.ops.cast(known, "int32") + 1)

        touched = [*self._local, *self.outer, has_begun]
        self._backend.run_if(has_begun.value < 1, take, touched)

    def after_step(self) -> None:
        """Count a local step, and make the exchange that is due.

        Raises:
            HorovodInternalError: an exchange failed.
        """
        _, num_steps, num_alone = self._counters
        with self._backend.counting():
            num_steps.assign(num_steps.value + 1)
            num_alone.assign(num_alone.value + 1)
        schedule = self.settings.schedule
        for fragment in range(len(self._fragments)):
            since = num_steps.value - schedule.first_start(fragment)
            self._backend.run_if(
                since % schedule.every < 1,
                self._exchange_in_step(fragment),
                self._touched(fragment),
            )

    def begin_again(self) -> None:
        """Take the variables as the outer ones at the next step."""
        with self._backend.counting():
            for counter in self._counters:
                counter.assign(0)

    def synchronize(self) -> None:
        """Bring all variables together now, so that they are equal on all ranks.

        Raises:
            HorovodInternalError: an exchange failed.
        """
        self.begin()
        num_alone = self._counters[2]

        def exchange() -> None:
            for fragment in range(len(self._fragments)):
                self._exchange(fragment)
            with self._backend.counting():
                num_alone.assign(0)

        touched = [*self._local, *self.variables]
        self._backend.run_if(num_alone.value > 0, exchange, touched)

    def state(self) -> dict[str, Any]:
        """Return the values of all variables by name, as arrays of NumPy."""
        return dict(zip(self._keys(), map(_array_of, self.variables), strict=True))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Give all variables the values that :meth:`state` returned.

        Raises:
            UsageError: it is a state of another optimizer; nothing is changed then.
        """
        own = dict(zip(self._keys(), self.variables, strict=True))
        theirs = {key: tuple(np.shape(state[key])) for key in state}
        if theirs != {key: tuple(variable.shape) for key, variable in own.items()}:
            raise UsageError(
                f"the outer state has the arrays {theirs}, which do not fit this optimizer: it has "
                f"{ {key: tuple(variable.shape) for key, variable in own.items()} }"
            )
        for key, variable in own.items():
            variable.assign(state[key])

    def register_local(self, variable: Any) -> None:
        """Refuse to leave a variable out.

        Raises:
            UsageError: always.
        """
        raise UsageError("LocalSGD and DiLoCo average all variables; none can stay on its rank")

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Refuse to leave the variables of layers out.

        Raises:
            UsageError: there are layers.
        """
        for layer in layers:
            self.register_local(layer)

    def local_keys(self) -> set[Any]:
        """Return the keys of variables that are left out: none."""
        return set()

    def reduce(self, gradients: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        """Return the gradients as they are, those of this rank."""
        return list(gradients)

    def num_alone(self) -> int:
        """Return how many steps were taken since all ranks were equal; 0 if nobody knows."""
        held = self._counters[2].value if self._counters else None
        return 0 if held is None else int(keras.ops.convert_to_numpy(held))

    def _keys(self) -> list[str]:
        counters = [variable.name for variable in self._counters]
        outer = [f"outer_{i}" for i in range(len(self.outer))]
        rest = len(self.variables) - len(counters) - len(outer)
        return [*counters, *outer, *(f"optimizer_{i}" for i in range(rest))]

    def _touched(self, fragment: int) -> list[Any]:
        part = self._fragments[fragment]
        of_optimizer = [] if self.optimizer is None else list(self.optimizer.variables)
        locals_and_outer = [v[i] for v in (self._local, self.outer) for i in part]
        return [*locals_and_outer, *of_optimizer, *self._counters]

    def _exchange_in_step(self, fragment: int) -> Any:
        every = context.settings().check_in_sync_steps
        schedule = self.settings.schedule
        _, num_steps, num_alone = self._counters

        def exchange() -> None:
            self._exchange(fragment)
            if schedule.fragments == 1:
                with self._backend.counting():
                    num_alone.assign(0)
            if every:
                since = num_steps.value - schedule.first_start(fragment)
                count = since // schedule.every + 1
                part = [self.outer[i] for i in self._fragments[fragment]]
                self._backend.run_if(
                    count % every < 1, lambda: self._check(part, fragment), [*part, num_steps]
                )

        return exchange

    def _check(self, part: Sequence[Any], fragment: int) -> None:
        num_steps = self._counters[1]
        known = self._compare(part, self._fragments[fragment], f"check.{fragment}", "")
        with self._backend.counting():
            num_steps.assign(num_steps.value + keras.ops.cast(known, "int32"))

    def _exchange(self, fragment: int) -> None:
        part = self._fragments[fragment]
        outer = [self.outer[i] for i in part]
        local = [self._local[i] for i in part]
        changes = [
            keras.ops.cast(mine.value, shared.dtype) - shared.value
            for mine, shared in zip(local, outer, strict=True)
        ]
        group = self._group()
        if self._backend.reduces():
            changes = self._backend.average(changes, f"{self._prefix(group)}.{fragment}")
        if self.optimizer is None:
            for shared, change in zip(outer, changes, strict=True):
                shared.assign(shared.value + change)
        else:
            self.optimizer.apply([-change for change in changes], outer)
            if fragment + 1 < len(self._fragments):
                # Keras counts calls, but a round of all fragments is one outer step.
                self.optimizer._iterations.assign_add(-1)
        for mine, shared in zip(local, outer, strict=True):
            if mine.constraint is not None:
                shared.assign(keras.ops.cast(mine.constraint(shared.value), shared.dtype))
            mine.assign(self._backend.copied(keras.ops.cast(shared.value, mine.dtype)))

    def _compare(
        self, variables: Sequence[Any], places: Iterable[int], name: str, what: str
    ) -> Any:
        group = self._group()
        if not self._backend.reduces():
            return 0
        # Not their paths: names of layers differ where a rank has made other layers, too.
        names = [f"{i}.{self._local[i].path.rpartition('/')[2]}" for i in places]
        tensors = [variable.value for variable in variables]
        return self._backend.compare(tensors, names, f"{self._prefix(group)}.{name}", what)

    def _group(self) -> Group:
        group = group_of(self.settings.process_set)
        self.num_ranks = group.size if reduces(group) else 1
        return group

    def _prefix(self, group: Group) -> str:
        number = self._number.within(group)
        return self.settings.name if number == 1 else f"{self.settings.name}_{number}"


def _wide(variable: Any) -> str:
    dtype: str = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype in _HALF else dtype


def _array_of(variable: Any) -> Any:
    return np.array(keras.ops.convert_to_numpy(variable.value))
