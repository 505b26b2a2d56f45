"""What older scripts rely on, where no other test says it; ranks are threads."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import types
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from thread_ranks import Sent, ThreadRanks, run_ranks
from torch_training import F64, assert_close, assert_ranks_agree, backward, make_model

import horovod.torch as hvd
from horovod import _native, errors
from horovod._train.call_site import call_site
from horovod.torch import compiling

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = """
Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters
allreduce allreduce_async allreduce_ allreduce_async_
grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_
sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async
reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
join barrier poll synchronize init shutdown is_initialized start_timeline stop_timeline
size local_size cross_size rank local_rank cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
nccl_built ddl_built ccl_built cuda_built rocm_built
ProcessSet global_process_set add_process_set remove_process_set
Average Sum Adasum Min Max Product HorovodInternalError DistributedOptimizer SyncBatchNorm
"""

FIRST_ARGUMENTS = {
    "init": ["comm", "process_sets"],
    "shutdown": [],
    "is_initialized": [],
    "start_timeline": ["file_path", "mark_cycles"],
    "stop_timeline": [],
    "join": ["device"],
    "add_process_set": ["process_set"],
    "remove_process_set": ["process_set"],
    "SyncBatchNorm": ["num_features", "eps", "momentum", "affine", "track_running_stats"],
}


def test_every_name_of_the_interface_exists() -> None:
    names = NAMES.split()
    assert set(names) <= set(hvd.__all__)
    assert all(hasattr(hvd, name) for name in names)
    # Asked for before anything is initialized.
    assert not hvd.is_initialized()
    assert not hvd.mpi_enabled()
    assert isinstance(hvd.nccl_built(), int)


@pytest.mark.parametrize("name", FIRST_ARGUMENTS)
def test_arguments_may_be_given_by_place(name: str) -> None:
    parameters = list(inspect.signature(getattr(hvd, name)).parameters)
    expected = FIRST_ARGUMENTS[name]
    assert parameters[: len(expected)] == expected


def test_what_needs_init_is_refused_with_either_class() -> None:
    queries: tuple[Callable[[], object], ...] = (
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
        hvd.stop_timeline,
        lambda: hvd.start_timeline("never.json"),
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: hvd.barrier(),
        lambda: hvd.join(),
    )
    for query in queries:
        for kind in (ValueError, hvd.HorovodInternalError):
            with pytest.raises(kind, match=r"Horovod has not been initialized; call hvd\.init"):
                query()
    # Not an error: nothing to shut down.
    hvd.shutdown()


def test_exceptions_fit_into_older_handlers() -> None:
    assert hvd.HorovodInternalError is errors.HorovodInternalError
    for lost in (errors.MismatchError, errors.PeerLostError, errors.ShutDownError):
        assert issubclass(lost, hvd.HorovodInternalError)
        assert issubclass(lost, RuntimeError)
    assert issubclass(errors.DuplicateNameError, ValueError)
    for older in (RuntimeError, NotImplementedError, ValueError, hvd.HorovodInternalError):
        assert issubclass(errors.UnsupportedError, older)
    assert not errors.HostsUpdatedInterrupt().skip_sync
    assert errors.HostsUpdatedInterrupt(skip_sync=True).skip_sync
    mismatch = errors.HorovodVersionMismatchError("torch", "2.1", "1.0")
    assert isinstance(mismatch, ImportError)
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "2.1", "1.0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_reductions_that_do_not_exist_are_refused_by_the_class_for_it(dtype: torch.dtype) -> None:
    def body(_: int) -> None:
        tensor = torch.ones(4).to(dtype)
        calls: list[Callable[[], object]] = [
            functools.partial(function, tensor, op=op)
            for function in (hvd.reducescatter, hvd.reducescatter_async)
            for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
        ]
        if not tensor.is_floating_point():
            calls.append(lambda: hvd.allreduce(tensor, op=hvd.Adasum))
        for call in calls:
            with pytest.raises(errors.UnsupportedError):
                call()

    run_ranks(2, body)


def test_a_set_of_an_mpi_communicator_is_not_implemented() -> None:
    communicator = types.SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1)
    with pytest.raises(NotImplementedError):
        hvd.ProcessSet(communicator)


def test_names_begin_with_the_operation() -> None:
    with ThreadRanks(1) as ranks:
        sent = Sent(ranks.groups[0])

        def body(_: int) -> None:
            tensor, pair = torch.ones(2), [torch.ones(2), torch.ones(3)]
            for name in ("x", None):
                hvd.allreduce(tensor, name=name)
                hvd.allreduce_(tensor, name=name)
                hvd.synchronize(hvd.allreduce_async(tensor, name=name))
                hvd.grouped_allreduce(pair, name=name)
                hvd.allgather(tensor, name=name)
                hvd.grouped_allgather(pair, name=name)
                hvd.broadcast(tensor, 0, name=name)
                hvd.broadcast_(tensor, 0, name=name)
                hvd.alltoall(tensor, name=name)
                hvd.reducescatter(tensor, name=name)
                hvd.grouped_reducescatter(pair, name=name)
            hvd.barrier()
            hvd.join()

        ranks.run(body)
    prefixes = [
        *["allreduce"] * 3,
        "grouped_allreduce",
        "allgather",
        "grouped_allgather",
        *["broadcast"] * 2,
        "alltoall",
        "reducescatter",
        "grouped_reducescatter",
    ]
    named = [f"{prefix}.x" for prefix in prefixes]
    # Only operations without a name count, whatever their kind.
    unnamed = [f"{prefix}.noname.{number}" for number, prefix in enumerate(prefixes, 1)]
    assert sent.names == [*named, *unnamed, "barrier.noname", "join.noname"]


def test_unnamed_operations_meet_by_their_number() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            # Named ones, and those of other sets, do not count.
            handle = hvd.allreduce_async(torch.ones(1), name="late")
        first = hvd.allreduce(torch.ones(2), op=hvd.Sum)
        if rank == 1:
            handle = hvd.allreduce_async(torch.ones(1), name="late")
        assert first.tolist() == [2.0, 2.0]
        hvd.synchronize(handle)
        with pytest.raises(errors.MismatchError, match="allgather") as caught:
            hvd.allgather(torch.ones(2)) if rank else hvd.broadcast(torch.ones(2), 0)
        assert "broadcast" in str(caught.value)
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]

    run_ranks(2, body)


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_the_gradient_of_other_reductions_is_reduced_alike(op: str) -> None:
    of_two = {"Min": 2.0, "Max": 3.0, "Product": 6.0}

    def body(rank: int) -> None:
        x = torch.ones(2, requires_grad=True)
        y = hvd.allreduce(x, op=getattr(hvd, op))
        (y * (2.0 + rank)).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [of_two[op]] * 2

    run_ranks(2, body)


def test_every_tensor_of_a_group_is_checked() -> None:
    def body(_: int) -> None:
        wrong = torch.ones(4)[::2]
        for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
            with pytest.raises(ValueError, match="not contiguous"):
                call([torch.ones(2), wrong])

    run_ranks(1, body)


def test_a_reducescatter_is_as_large_as_it_likes() -> None:
    options = _native.EngineOptions(fusion_threshold=64)
    with ThreadRanks(2, options) as ranks:

        def body(rank: int) -> None:
            rows = hvd.reducescatter(torch.ones(1000), op=hvd.Sum, prescale_factor=0.5)
            assert rows.tolist() == [1.0] * 500

        ranks.run(body)


@pytest.mark.parametrize("fuse_groups", [True, False])
def test_groups_share_no_batch_if_they_must_not(fuse_groups: bool) -> None:
    options = _native.EngineOptions(fuse_groups=fuse_groups)
    with ThreadRanks(2, options) as ranks:

        def body(rank: int) -> None:
            pairs = [[torch.ones(100_000), torch.ones(10_000)] for _ in range(20)]
            if rank == 1:
                hvd.barrier()
            pending = [hvd.grouped_allreduce_async(p, name=f"g{i}") for i, p in enumerate(pairs)]
            if rank == 0:
                # All are announced here before the other rank has begun.
                hvd.barrier()
            for handle in pending:
                assert all(bool((tensor == 1).all()) for tensor in hvd.synchronize(handle))

        ranks.run(body)
        assert (ranks.engines[0].statistics()["fused_operations"] > 0) == fuse_groups


def test_sparse_averages_in_process_sets() -> None:
    def body(rank: int) -> None:
        pair = hvd.add_process_set([0, 2])
        if rank == 1:
            return
        generator = torch.Generator().manual_seed(rank)
        dense = [torch.randn(9, 2, generator=generator) * (torch.arange(9) % 3 == rank % 3)[:, None]
                 for _ in range(35)]  # fmt: skip
        pending = [
            hvd.sparse_allreduce_async(tensor.to_sparse(1), f"s{i}", hvd.Average, process_set=pair)
            for i, tensor in enumerate(dense)
        ]
        for tensor, finish in zip(dense, pending, strict=True):
            expected = hvd.allreduce(tensor, op=hvd.Average, process_set=pair)
            assert_close([finish().to_dense()], [expected])

    run_ranks(3, body)


def test_adasum_of_several_parameter_groups_without_names() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        groups = [{"params": [param]} for param in model.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), op=hvd.Adasum)
        assert len(set(optimizer._parameter_names.values())) == len(groups)
        backward(model, rank)
        optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, body)


# torch.compile: what reaches the engine ends a graph, and another one begins after it.

# The compiler asks the results of its graphs for their gradients, and hides the warning of that.
no_noise = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def test_a_compiled_function_may_call_collectives() -> None:
    def body(rank: int) -> None:
        def step(x: torch.Tensor, number: int) -> torch.Tensor:
            y = hvd.allreduce(x * 2, name=f"y{number}", op=hvd.Sum) + 1
            handle = hvd.allreduce_async(y, name=f"z{number}", op=hvd.Max)
            rows = hvd.allgather(y)
            return rows.sum() + hvd.synchronize(handle).sum()

        compiled = torch.compile(step, backend="eager")
        # More often than one function may be compiled anew for another name.
        for number in range(10):
            x = torch.full((2,), float(rank + number))
            assert compiled(x, number).item() == step(x, 100 + number).item()

    run_ranks(2, body)


def test_the_size_stays_in_the_graph() -> None:
    def body(rank: int) -> None:
        def scale(x: torch.Tensor) -> torch.Tensor:
            return x / hvd.global_process_set.size() + hvd.global_process_set.rank()

        assert torch.compile(scale, backend="eager")(torch.ones(1)).item() == 0.5 + rank

    run_ranks(2, body)


@no_noise
def test_gradients_flow_through_compiled_functions() -> None:
    def body(rank: int) -> None:
        @torch.compile(backend="eager")
        def loss(x: torch.Tensor) -> torch.Tensor:
            gathered = hvd.allgather(hvd.allreduce(x * 3, op=hvd.Sum))
            return gathered.sum()

        x = torch.ones(2, requires_grad=True)
        loss(x).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [6.0, 6.0]

        @torch.compile(backend="eager")
        def whole(x: torch.Tensor) -> None:
            loss(x).backward()

        x.grad = None
        whole(x)
        assert x.grad is not None
        assert x.grad.tolist() == [6.0, 6.0]

    run_ranks(2, body)


@no_noise
def test_a_whole_training_step_may_be_compiled() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled = torch.compile(step, backend="eager")
        losses = [float(compiled(torch.full((3, 5), 1.0 + rank, dtype=F64))) for _ in range(3)]
        assert losses[0] > losses[-1]
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_a_compiled_call_is_named_by_its_line() -> None:
    def body(rank: int) -> str:
        @torch.compile(backend="eager")
        def disagree(x: torch.Tensor) -> torch.Tensor:
            return hvd.allreduce(x + 1, name="loss")

        with pytest.raises(errors.MismatchError) as caught:
            disagree(torch.ones(2 + rank))
        return str(caught.value)

    line = inspect.getsourcelines(body)[1] + 3
    for message in run_ranks(2, body):
        assert message.count(f"{__file__}:{line}") == 2


def test_where_pytorch_lacks_the_cheap_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_site_of_caller() -> str:
        return call_site()

    def where() -> str:
        return call_site_of_caller()

    monkeypatch.delattr(torch._C._dynamo.eval_frame, "_FrameExecStrategy")
    disabled = compiling.outside_of_graphs(where)
    assert disabled is not where

    @torch.compile(backend="eager")
    def compiled(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x + 1, disabled()

    result, site = compiled(torch.ones(1))
    assert result.item() == 2.0
    # The frame of the wrapper is no line of the user's.
    assert site.startswith(f"{__file__}:")


def test_importing_the_adapter_does_not_load_the_compiler() -> None:
    program = "import sys, horovod.torch; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_no_call_warns_while_compiled() -> None:
    def body(_: int) -> None:
        compiled = torch.compile(lambda x: hvd.allreduce(x) + 1, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compiled(torch.ones(1)).item() == 2.0

    run_ranks(1, body)
