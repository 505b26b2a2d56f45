"""What is special to the collectives of horovod.torch; the contract suite tests their results."""

from __future__ import annotations

import gc
import inspect
import threading
import warnings
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRanks, run_ranks
from torch.multiprocessing.reductions import StorageWeakRef

import horovod.torch as hvd
from horovod.errors import MismatchError, ShutDownError, UsageError
from horovod.torch import handles

REDUCE = (
    "average=None name=None op=None prescale_factor=1.0 postscale_factor=1.0 process_set "
    "weight=None"
)
REDUCE_SYNC = REDUCE.replace("op=None", "compression op=None")
SCATTER = "name=None op=0 process_set prescale_factor=1.0 postscale_factor=1.0"
SIGNATURES = {
    "allreduce": f"tensor {REDUCE_SYNC}",
    "allreduce_async": f"tensor {REDUCE} priority=0",
    "allreduce_": f"tensor {REDUCE}",
    "allreduce_async_": f"tensor {REDUCE} priority=0",
    "grouped_allreduce": f"tensors {REDUCE_SYNC}",
    "grouped_allreduce_async": f"tensors {REDUCE} priority=0",
    "grouped_allreduce_": f"tensors {REDUCE}",
    "grouped_allreduce_async_": f"tensors {REDUCE} priority=0",
    "allgather": "tensor name=None process_set",
    "allgather_async": "tensor name=None process_set",
    "grouped_allgather": "tensors name=None process_set",
    "grouped_allgather_async": "tensors name=None process_set",
    "broadcast": "tensor root_rank name=None process_set",
    "broadcast_async": "tensor root_rank name=None process_set",
    "broadcast_": "tensor root_rank name=None process_set",
    "broadcast_async_": "tensor root_rank name=None process_set",
    "alltoall": "tensor splits=None name=None process_set",
    "alltoall_async": "tensor splits=None name=None process_set",
    "reducescatter": f"tensor {SCATTER.replace('op=0', 'compression op=0')}",
    "reducescatter_async": f"tensor {SCATTER}",
    "grouped_reducescatter": f"tensors {SCATTER.replace('op=0', 'compression op=0')}",
    "grouped_reducescatter_async": f"tensors {SCATTER}",
    "barrier": "process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model=None",
    "broadcast_object": "obj root_rank=0 name=None process_set",
    "allgather_object": "obj name=None process_set",
    "DistributedOptimizer": (
        "optimizer named_parameters=None compression backward_passes_per_step=1 op=0 "
        "gradient_predivide_factor=1.0 num_groups=0 groups=None sparse_as_dense=False process_set "
        "weight=None gradient_buckets=None shard_state=False"
    ),
}


def _written(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    if parameter.name == "process_set":
        assert parameter.default is hvd.global_process_set
        return parameter.name
    if parameter.name == "compression":
        assert parameter.default is hvd.Compression.none
        return parameter.name
    default = (
        int(parameter.default)
        if parameter.name == "op" and parameter.default is not None
        else parameter.default
    )
    return f"{parameter.name}={default}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert " ".join(_written(parameter) for parameter in parameters) == SIGNATURES[name]


def test_everything_exported_exists_and_is_documented() -> None:
    for name in hvd.__all__:
        value = getattr(hvd, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, name


def test_reductions_have_their_numbers() -> None:
    names = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
    assert [int(getattr(hvd, name)) for name in names] == list(range(6))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(3, 4).t(), "not contiguous"),
        (torch.ones(4)[::2], "not contiguous"),
        (torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
        (torch.ones(2, 2).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "meta device"),
        (torch.ones(1, dtype=torch.complex64).conj().imag, "resolve_neg"),
        (torch.ones(2).to(torch.float8_e4m3fn), "not supported"),
        ([1.0], "expected a torch.Tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_cannot_be_sent_are_refused(tensor: Any, message: str) -> None:
    def body(_: int) -> None:
        for call in (
            lambda: hvd.allreduce(tensor),
            lambda: hvd.allgather(tensor),
            lambda: hvd.alltoall(tensor),
            lambda: hvd.synchronize(hvd.allgather_async(tensor)),
        ):
            with pytest.raises(UsageError, match=message):
                call()

    run_ranks(1, body)


def test_the_older_average_flag_works_and_warns_at_the_callers_line() -> None:
    def body(_: int) -> None:
        tensor = torch.ones(3)
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async):
            with pytest.warns(DeprecationWarning, match="average") as caught:
                result = call(tensor, False)
            assert caught[0].filename == __file__
            if isinstance(result, int):
                hvd.synchronize(result)
            with pytest.raises(ValueError, match="both given"):
                call(tensor, True, op=hvd.Sum)

    run_ranks(1, body)


def test_autograd_notices_in_place_operations() -> None:
    def body(_: int) -> None:
        weight = torch.ones(2, requires_grad=True)
        loss = (weight * weight).sum()
        hvd.broadcast_(weight, 0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        with torch.inference_mode():
            hvd.allreduce_(torch.ones(2))

    run_ranks(1, body)


def test_inputs_live_until_the_operation_is_over() -> None:
    def body(rank: int) -> None:
        pending = [
            hvd.allreduce_async(torch.full((10000,), float(i)), name=f"t{i}") for i in range(20)
        ]
        gc.collect()
        for i, handle in enumerate(pending):
            assert (hvd.synchronize(handle) == i).all()

    run_ranks(2, body)


@pytest.mark.parametrize("kind", ["allreduce", "allreduce_", "allgather", "broadcast_", "alltoall"])
def test_memory_in_flight_outlives_a_tensor_that_gets_other_memory(kind: str) -> None:
    submitted, looked = threading.Barrier(2), threading.Barrier(2)

    def body(rank: int) -> None:
        tensor = torch.ones(200)
        memory = StorageWeakRef(tensor.untyped_storage())
        root = (0,) if kind == "broadcast_" else ()
        start = getattr(hvd, f"{kind.rstrip('_')}_async{'_' * kind.endswith('_')}")
        if rank == 1:
            submitted.wait(20)
            looked.wait(20)
        handle = start(tensor, *root, name="x")
        tensor.data = torch.zeros(1)
        if rank == 0:
            submitted.wait(20)
            assert not memory.expired()
            looked.wait(20)
        hvd.synchronize(handle)
        assert memory.expired()

    run_ranks(2, body)


def test_gathered_results_outlive_their_operation() -> None:
    def body(rank: int) -> None:
        results = [hvd.allgather(torch.full((1000,), float(i))) for i in range(20)]
        gc.collect()
        for i, result in enumerate(results):
            assert (result == i).all()
            result += 1

    run_ranks(2, body)


def test_handles_that_nobody_synchronized_go_with_their_job() -> None:
    def start(_: int) -> int:
        return hvd.allreduce_async(torch.ones(1))

    left = run_ranks(1, start)
    run_ranks(1, start)
    assert left[0] not in handles._table._pending


@pytest.mark.parametrize("splits", [torch.ones(2), torch.ones(2, dtype=torch.int16), ["a"], 7])
def test_splits_are_int32_int64_or_a_sequence_of_integers(splits: Any) -> None:
    def body(_: int) -> None:
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(torch.ones(2), splits)

    run_ranks(2, body)


def test_splits_may_be_an_int32_tensor() -> None:
    def body(rank: int) -> None:
        splits = torch.tensor([1, 2], dtype=torch.int32)
        output, received = hvd.alltoall(torch.full((3,), rank), splits)
        assert output.tolist() == [0] * (rank + 1) + [1] * (rank + 1)
        assert received.tolist() == [rank + 1] * 2

    run_ranks(2, body)


def test_an_input_that_requires_grad_is_not_followed_without_grad_mode() -> None:
    def body(_: int) -> None:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            assert not hvd.allreduce(x).requires_grad
        assert hvd.allreduce(x).requires_grad
        assert not hvd.synchronize(hvd.allreduce_async(x)).requires_grad
        _, received = hvd.alltoall(x, [2])
        assert not received.requires_grad

    run_ranks(1, body)


def test_groups_pass_gradients_to_the_members_that_want_them() -> None:
    def body(rank: int) -> None:
        a = torch.ones(2, requires_grad=True)
        b = torch.ones(3)
        c = torch.ones(2, 2, requires_grad=True)
        d = torch.ones(2, dtype=torch.int64)
        for name, expected in (
            ("grouped_allreduce", 2.0),
            ("grouped_reducescatter", 2.0),
        ):
            a.grad = c.grad = None
            outputs = getattr(hvd, name)([a, b, c, d], op=hvd.Sum, name="g")
            (outputs[0].sum() + 3 * outputs[2].sum()).backward()
            assert a.grad is not None
            assert c.grad is not None
            assert a.grad.tolist() == [expected] * 2
            assert c.grad.tolist() == [[3 * expected] * 2] * 2
        a.grad = c.grad = None
        outputs = hvd.grouped_allgather([a, b, c, d])
        ((outputs[0] * torch.tensor([1.0, 1, 2, 2])).sum() + outputs[2].sum()).backward()
        assert a.grad is not None
        assert c.grad is not None
        assert a.grad.tolist() == [1.0 + rank] * 2
        assert c.grad.tolist() == [[1.0, 1.0]] * 2

    run_ranks(2, body)


def test_reducescatter_leaves_the_incoming_gradient_alone() -> None:
    def body(_: int) -> None:
        x = torch.ones(4, requires_grad=True)
        incoming = torch.ones(2)
        hvd.reducescatter(x, op=hvd.Sum).backward(incoming)
        assert incoming.tolist() == [1.0, 1.0]

    run_ranks(2, body)


def test_second_derivatives() -> None:
    def body(_: int) -> None:
        x = torch.full((2,), 3.0, requires_grad=True)
        y = hvd.allreduce(x, op=hvd.Sum)
        (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        # y = 6 on both ranks, dL/dx = 2 * 3 y^2, and the derivative of that: 2 * 2 * 6 y * 2.
        assert first.tolist() == [216.0, 216.0]
        (second,) = torch.autograd.grad(first.sum(), x)
        assert second.tolist() == [144.0, 144.0]

    run_ranks(2, body)


def test_messages_name_the_line_of_the_caller() -> None:
    def body(rank: int) -> str:
        x = torch.ones(2 + rank, requires_grad=rank == 1)
        with pytest.raises(MismatchError) as caught:
            hvd.allreduce(x, name="loss")
        return str(caught.value)

    line = inspect.getsourcelines(body)[1] + 3
    for message in run_ranks(2, body):
        assert message.count(f"{__file__}:{line}") == 2
        assert "allreduce.loss" in message


def test_a_lost_peer_fails_what_is_pending_and_what_comes() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            if rank == 1:
                hvd.barrier()
                ranks.engines[1].close("the test ends this rank")
                return
            handle = hvd.allreduce_async(torch.ones(2))
            hvd.barrier()
            with pytest.raises(hvd.HorovodInternalError, match="the test ends this rank"):
                hvd.synchronize(handle)
            with pytest.raises(ShutDownError):
                hvd.allreduce(torch.ones(2))

        ranks.run(body)


def test_no_warning_on_a_plain_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_ranks(1, lambda _: hvd.allreduce(torch.ones(2)))
