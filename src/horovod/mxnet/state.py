"""Starting all ranks from the same parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from horovod._train.call_site import call_site
from horovod._train.process_set import global_process_set, group_of
from horovod._train.same_parameters import Parameter, check_same_parameters
from horovod.errors import UsageError
from horovod.mxnet.ops import broadcast_
from horovod.mxnet.tensors import make_plain

if TYPE_CHECKING:
    from collections.abc import Mapping


def broadcast_parameters(
    params: Mapping[str, Any] | mx.gluon.ParameterDict,
    root_rank: int = 0,
    prefix: str | None = None,
) -> None:
    """Overwrites parameters on all ranks with those of the root; MXNet does so later.

    A parameter whose shape is not known yet is sent when MXNet initializes it, in the first forward
    pass.

    Args:
        params: parameters or arrays by name, the same names on all ranks, such as
            ``net.collect_params()``, or ``arg_params`` of a Module.
        root_rank: the rank whose values count.
        prefix: of the names that the ranks agree on.

    Raises:
        UsageError (a ValueError): ``params`` or a value is something else.
        MismatchError: the ranks do not have the same names.
        HorovodInternalError: the job failed.

    Example:
        >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    """
    named = _named(params)
    group = group_of(global_process_set)
    if group.size == 1 or not named:
        return
    prefix = prefix or ""
    described = [Parameter(name, "there", name) for name, _ in named]
    check_same_parameters(group, described, f"{prefix}{named[0][0]}.parameters", call_site())
    for name, value in named:
        _broadcast(value, root_rank, f"{prefix}{name}")


def _named(params: Any) -> list[tuple[str, Any]]:
    if not isinstance(params, (dict, mx.gluon.ParameterDict)):
        raise UsageError(
            f"params is a {type(params).__name__}; give net.collect_params(), or a dict of arrays"
        )
    named = sorted(params.items())
    for name, value in named:
        if not isinstance(value, (mx.nd.NDArray, mx.gluon.Parameter)):
            raise UsageError(
                f"parameter {name!r} is a {type(value).__name__}, neither a Parameter nor an array"
            )
    return named


def _broadcast(value: Any, root_rank: int, name: str) -> None:
    if isinstance(value, mx.nd.NDArray):
        make_plain(value)
        broadcast_(value, root_rank, name)
        return
    try:
        array = value.data()
    except mx.gluon.parameter.DeferredInitializationError:
        _broadcast_once_initialized(value, root_rank, name)
    else:
        _broadcast(array, root_rank, name)


def _broadcast_once_initialized(parameter: Any, root_rank: int, name: str) -> None:
    initialize = parameter._init_impl

    def initialize_and_broadcast(*args: Any, **kwargs: Any) -> None:
        initialize(*args, **kwargs)
        broadcast_(parameter.data(), root_rank, name)

    parameter._init_impl = initialize_and_broadcast
