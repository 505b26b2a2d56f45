"""Starting all ranks from the same values of variables: eagerly, in graphs, by a session hook."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._keras.sharding.whole import refuse_parts
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.same_parameters import Parameter, check_same_parameters
from horovod._train.structure import without_numbers
from horovod.errors import MismatchError, UsageError
from horovod.tensorflow.exchanges import broadcast, broadcast_
from horovod.tensorflow.placement import placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._rank.group import Group
    from horovod.tensorflow.interface_types import Session, Variable


def broadcast_variables(
    variables: Iterable[Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites variables on all ranks with the values of the root; all are in flight at once.

    Args:
        variables: those of TensorFlow or Keras, of any numeric dtype or bool; initialized, of the
            same shapes and dtypes on all ranks. Outside of a tf.compat.v1 graph they are matched by
            their place, since automatic names may differ between ranks, but for their last words,
            such as kernel or momentum, which are compared; in one by their names.
        root_rank: the global rank whose values count.
        process_set: the ranks that take part.
        inplace: send the variables of each device as one operation.

    Returns:
        In a graph an operation to run; eagerly None, and all is done.

    Raises:
        UsageError: something is no variable, has no value that could be sent, or is a share of an
            optimizer's state.
        tf.errors.FailedPreconditionError: the ranks disagree about a variable; in a graph, when the
            operation runs.
        tf.errors.UnknownError: the job failed; in a graph, when the operation runs.

    Example:
        >>> hvd.broadcast_variables(model.variables, root_rank=0)
    """
    variables = list(variables)
    refuse_parts(variables)
    targets = [tensorflow_variable(variable) for variable in variables]

    def overwrite() -> None:
        assign(targets, root_rank, process_set)

    assign = _assign_in_place if inplace else _assign
    if not tf.executing_eagerly():
        updates = assign(targets, root_rank, process_set)
        return tf.group(*updates, name="broadcast_variables")
    _check_alike(targets, group_of(process_set), call_site())
    # Operations run one by one eagerly, but all at once in a graph.
    tf.function(overwrite, autograph=False)()
    return None


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """An operation that overwrites all global variables of the default graph with the root's.

    Args:
        root_rank: the rank whose values count.

    Raises:
        RuntimeError: TensorFlow executes eagerly, where no list of global variables exists.

    Example:
        >>> session.run(tf.compat.v1.global_variables_initializer())
        >>> session.run(hvd.broadcast_global_variables(0))
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables works in graphs of tf.compat.v1 only, as there are no "
            "global variables in eager mode; use hvd.broadcast_variables(model.variables, "
            "root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the global variables of the root when a session begins.

    All ranks must use it. A checkpoint that only the root restores is so spread to all.

    Args:
        root_rank: the rank whose values count.
        device: where the broadcasts are placed; empty leaves it to TensorFlow; a GPU is
            passed over.

    Example:
        >>> hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        >>> with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...     session.run(train_op)
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._broadcast: tf.Operation | None = None

    def begin(self) -> None:
        """Adds the broadcasts to the default graph, before it becomes read-only."""
        graph = tf.compat.v1.get_default_graph()
        if self._broadcast is None or self._broadcast.graph is not graph:
            with placed(self._device):
                self._broadcast = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Runs the broadcasts, after initialization or restoring of a checkpoint."""
        session.run(self._broadcast)


def _check_alike(variables: Sequence[Any], group: Group, site: str) -> None:
    """By their places, as the broadcasts are matched."""
    described = [
        Parameter(
            f"{index:06}.{_own_name(each)}",
            f"{each.dtype.base_dtype.name} {tuple(each.shape)}",
            each.name,
        )
        for index, each in enumerate(variables)
    ]
    try:
        check_same_parameters(group, described, "broadcast_variables.parameters", site)
    except MismatchError as error:
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from error


def _own_name(variable: Any) -> str:
    """Return the part of a name that is the same on all ranks: its last word.

    Keras puts the names of models and layers before it, which differ where one rank has loaded its
    model, and the others have made theirs.
    """
    last = str(variable.name).rpartition("/")[2].partition(":")[0]
    return without_numbers(last).rpartition("_")[2]


def tensorflow_variable(variable: Variable) -> Any:
    """The variable of TensorFlow behind what Keras or TensorFlow call a variable.

    Raises:
        UsageError: it is something else, or a dtype that no collective carries.
    """
    # A keras.Variable holds one; Keras itself need not be imported to know.
    found = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    if not isinstance(found, tf.Variable):
        raise UsageError(f"{variable!r} is a {type(variable).__name__}, not a variable")
    if found.dtype.base_dtype in (tf.string, tf.resource, tf.variant):
        raise UsageError(
            f"the variable {found.name!r} is of dtype {found.dtype.base_dtype.name}, which cannot "
            "be sent; leave it out"
        )
    return found


def _assign(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> list[Any]:
    results = []
    for index, variable in enumerate(variables):
        sent = broadcast(
            variable.read_value(), root_rank, _name_of(variable, index), process_set=process_set
        )
        results.append(variable.assign(sent))
    return results


def _assign_in_place(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet
) -> list[Any]:
    """One operation for each device and kind of variable, as these cannot be mixed."""
    alike: dict[tuple[str, bool], list[Any]] = defaultdict(list)
    for variable in variables:
        is_resource = variable.dtype.base_dtype == variable.dtype
        alike[variable.device, is_resource].append(variable)
    results = []
    for index, members in enumerate(alike.values()):
        name = f"broadcast_variables.inplace.{index}"
        results += broadcast_(members, root_rank, name, process_set=process_set)
    return results


def _name_of(variable: Any, index: int) -> str:
    """Return the name that ranks compare: that of the variable if the user chose it."""
    graph = tf.compat.v1.get_default_graph()
    if getattr(graph, "building_function", False):
        return f"broadcast_variables.{index}"
    return f"broadcast_variables/{variable.op.name.replace('/', '.')}"
