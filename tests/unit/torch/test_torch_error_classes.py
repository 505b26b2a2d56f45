"""What old scripts catch: the classes of errors, case by case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from thread_ranks import ThreadRanks, run_ranks

import horovod.torch as hvd
from horovod.errors import (
    DuplicateNameError,
    HorovodInternalError,
    MismatchError,
    NotInitializedError,
    ShutDownError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool")
_X = torch.ones(4)


class _Foreign(hvd.ProcessSet):
    """A set that was never added."""


def _local(call: Callable[[], Any]) -> Callable[[int], Any]:
    """An error that needs one rank only."""
    return lambda rank: call()


# By what a script does: the classes that it may catch. All ranks do it at the same time.
CASES: dict[str, tuple[Callable[[int], Any], tuple[type[BaseException], ...]]] = {
    "a set that was not added": (
        _local(lambda: hvd.allreduce(_X, process_set=_Foreign([0]))),
        (ValueError, UsageError),
    ),
    "a root outside of the set": (_local(lambda: hvd.broadcast(_X, 7)), (ValueError, UsageError)),
    "a negative root": (_local(lambda: hvd.broadcast_(_X.clone(), -1)), (ValueError,)),
    "too many splits": (_local(lambda: hvd.alltoall(_X, [1] * 9)), (ValueError,)),
    "splits beyond the rows": (_local(lambda: hvd.alltoall(_X, [3, 3])), (ValueError,)),
    "splits of another dtype": (
        _local(lambda: hvd.alltoall(_X, torch.tensor([1.0, 1.0]))),
        (ValueError,),
    ),
    "rows that cannot be divided": (_local(lambda: hvd.alltoall(torch.ones(3))), (ValueError,)),
    "an operation and an average": (
        _local(lambda: hvd.allreduce(_X, average=True, op=hvd.Sum)),
        (ValueError,),
    ),
    "a dtype that is not supported": (
        _local(lambda: hvd.allreduce(torch.ones(2).to(torch.float8_e4m3fn))),
        (ValueError,),
    ),
    "a sparse tensor": (_local(lambda: hvd.allreduce(_X.to_sparse())), (ValueError,)),
    "a tensor that is not contiguous, in place": (
        _local(lambda: hvd.allreduce_(torch.ones(3, 4).t())),
        (ValueError,),
    ),
    "an unknown handle": (_local(lambda: hvd.poll(123456789)), (ValueError,)),
    "another dtype on a rank": (
        lambda rank: hvd.allreduce(_X.double() if rank else _X, name="dtype"),
        (RuntimeError, HorovodInternalError, MismatchError),
    ),
    "another shape on a rank": (
        lambda rank: hvd.allreduce(torch.ones(rank + 1), name="shape"),
        (RuntimeError, HorovodInternalError),
    ),
    "another reduction on a rank": (
        lambda rank: hvd.allreduce(_X, name="op", op=hvd.Sum if rank else hvd.Max),
        (RuntimeError, HorovodInternalError),
    ),
    "another root on a rank": (
        lambda rank: hvd.broadcast(_X, rank, name="root"),
        (RuntimeError, HorovodInternalError),
    ),
    "another factor on a rank": (
        lambda rank: hvd.allreduce(_X, name="factor", prescale_factor=rank + 1.0),
        (RuntimeError, HorovodInternalError),
    ),
    "a scalar without rows": (
        _local(lambda: hvd.reducescatter(torch.tensor(1.0))),
        (ValueError, UsageError),
    ),
    "parameters of an unknown kind": (
        _local(lambda: hvd.broadcast_parameters(iter([_X]), 0)),
        (ValueError,),
    ),
    "LBFGS": (
        _local(lambda: hvd.broadcast_optimizer_state(torch.optim.LBFGS([_X]), 0)),
        (ValueError,),
    ),
}

_ALL = (RuntimeError, NotImplementedError, ValueError, HorovodInternalError, UnsupportedError)
for _dtype in _DTYPES:
    _tensor = torch.ones(4).to(getattr(torch, _dtype))
    for _op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        for _function in (hvd.reducescatter, hvd.reducescatter_async):
            CASES[f"{_function.__name__} by {_op.name} of {_dtype}"] = (
                _local(lambda f=_function, t=_tensor, op=_op: f(t, op=op)),
                _ALL,
            )
    if not _tensor.is_floating_point():
        CASES[f"Adasum of {_dtype}"] = (
            _local(lambda t=_tensor: hvd.allreduce(t, op=hvd.Adasum)),
            _ALL,
        )


def test_each_error_is_of_the_classes_that_scripts_catch() -> None:
    def body(rank: int) -> dict[str, type[BaseException]]:
        raised: dict[str, type[BaseException]] = {}
        for what, (call, _) in CASES.items():
            try:
                call(rank)
            except Exception as error:
                raised[what] = type(error)
        return raised

    for raised in run_ranks(2, body):
        wrong = {
            f"{what}: {raised.get(what)} is no {kind.__name__}"
            for what, (_, kinds) in CASES.items()
            for kind in kinds
            if not issubclass(raised.get(what, object), kind)
        }
        assert wrong == set()


def test_a_name_in_flight_is_a_value_error() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            handle = hvd.allreduce_async(_X, name="twice")
            with pytest.raises(ValueError, match="twice") as caught:
                hvd.allreduce_async(_X, name="twice")
            assert isinstance(caught.value, DuplicateNameError)
            hvd.barrier()
            hvd.synchronize(handle)
        else:
            hvd.barrier()
            hvd.allreduce(_X, name="twice")

    run_ranks(2, body)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, HorovodInternalError])
def test_before_init(kind: type[Exception]) -> None:
    for call in (lambda: hvd.allreduce(_X), hvd.join, hvd.barrier, hvd.size):
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, NotInitializedError)


def test_after_a_peer_has_shut_down() -> None:
    def body(rank: int, ranks: ThreadRanks) -> None:
        if rank == 1:
            ranks.engines[1].close("enough")
            return
        with pytest.raises(HorovodInternalError) as caught:
            hvd.allreduce(_X)
        assert isinstance(caught.value, ShutDownError)
        assert isinstance(caught.value, RuntimeError)

    with ThreadRanks(2) as ranks:
        ranks.run(body, ranks)


def test_a_set_of_an_mpi_communicator_is_not_implemented() -> None:
    class Communicator:
        def Get_rank(self) -> int:
            return 0

        def Get_size(self) -> int:
            return 1

    with pytest.raises(NotImplementedError):
        hvd.ProcessSet(Communicator())
