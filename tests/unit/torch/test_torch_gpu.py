"""What horovod.torch does with tensors on GPUs, over a fake driver; ranks are threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from fake_gpu import library
from gpu_ranks import NCCL, SHARED, STAGED, GpuRanks, Way, fake_cuda, on_device
from torch_cuda import CudaTensor
from torch_scenarios import SCENARIOS, Job
from torch_training import RECIPES, check_equal, train_alone, train_distributed

import horovod.torch as hvd
from horovod._settings.config import Config
from horovod.errors import MismatchError, UsageError
from horovod.torch import devices
from horovod.torch.tensors import view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_cuda import FakeDriver

BOTH = pytest.mark.parametrize("way", [NCCL, SHARED], ids=["nccl", "shared"])
# The compiler knows no tensors of our making.
THREADED = sorted(set(SCENARIOS) - {"compiled"})


@pytest.fixture(scope="module")
def driver() -> Iterator[FakeDriver]:
    with fake_cuda() as driver:
        yield driver


@pytest.fixture(autouse=True)
def anew(driver: FakeDriver) -> Iterator[None]:
    yield
    wrong_uses = driver.wrong_uses()
    driver.reset()
    assert wrong_uses == []


def run(size: int, way: Way, function: Callable[..., Any], *args: Any) -> list[Any]:
    with GpuRanks(size, way) as ranks:
        return ranks.run(function, *args)


# --------------------------------------------------------------------------- streams


def test_nobody_waits_for_the_device(driver: FakeDriver) -> None:
    started = threading.Barrier(3, timeout=20.0)

    def body(rank: int) -> float:
        tensor = torch.full((1000,), float(rank + 1), device="cuda")
        hvd.allreduce(tensor, op=hvd.Sum)  # makes the communicator
        torch.cuda.synchronize()
        started.wait()
        started.wait()
        total = hvd.allreduce(tensor, op=hvd.Sum)  # returns while the device stands still
        started.wait()
        return float(total[-1])

    def hold_and_release() -> None:
        started.wait()
        for index in range(2):
            driver.hold_device(index)
        started.wait()
        started.wait()
        for index in range(2):
            driver.release_device(index)

    thread = threading.Thread(target=hold_and_release)
    thread.start()
    assert run(2, NCCL, body) == [3.0, 3.0]
    thread.join(20.0)


@BOTH
@pytest.mark.parametrize("own_stream", [False, True], ids=["default", "own"])
def test_inputs_are_read_behind_what_makes_them(
    way: Way, own_stream: bool, driver: FakeDriver
) -> None:
    driver.configure("delay_us:2000")

    def body(rank: int) -> list[list[int]]:
        index = way.device_of(rank)
        stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream(index)
        with torch.cuda.stream(stream):
            tensor = torch.zeros(64, dtype=torch.uint8, device="cuda")
            assert isinstance(tensor, CudaTensor)
            driver.fill_later(tensor, rank + 1)
            total = hvd.allreduce(tensor, op=hvd.Sum)
            gathered = hvd.allgather(total[:1])
            return [total.unique().tolist(), gathered.tolist()]

    assert run(2, way, body) == [[[3], [3, 3]]] * 2


@BOTH
def test_a_handle_may_be_awaited_on_another_stream(way: Way, driver: FakeDriver) -> None:
    driver.configure("delay_us:2000")

    def body(rank: int) -> list[float]:
        tensor = torch.full((1000,), float(rank), device="cuda")
        torch.cuda.synchronize()
        handle = hvd.allreduce_async(tensor, op=hvd.Sum)
        with torch.cuda.stream(torch.cuda.Stream()):
            total: torch.Tensor = hvd.synchronize(handle)
            return list(total.unique().tolist())

    assert run(2, way, body) == [[1.0]] * 2


# --------------------------------------------------------------------------- places


@BOTH
def test_results_are_where_the_tensor_is(way: Way) -> None:
    def body(rank: int) -> None:
        here = torch.device("cuda", way.device_of(rank))
        x = torch.ones(4, 2, device="cuda")
        assert hvd.allreduce(x).device == here
        assert hvd.allgather(x).device == here
        assert hvd.reducescatter(x).device == here
        assert hvd.broadcast(x, 1).device == here
        output, received = hvd.alltoall(x, [1, 3])
        assert (output.device, received.device) == (here, torch.device("cpu"))
        splits = torch.tensor([1, 3], dtype=torch.int32).to("cuda")
        output, received = hvd.alltoall(x, splits)
        assert (output.device, received.device) == (here, here)
        assert received.tolist() == [(1, 3)[rank]] * 2

    run(2, way, body)


def test_tensors_of_a_group_are_on_one_device() -> None:
    def body(rank: int) -> None:
        host, device = torch.ones(3), torch.ones(3, device="cuda")
        with pytest.raises(UsageError, match="cuda:"):
            hvd.grouped_allreduce([host, device])
        with pytest.raises(UsageError, match="cuda:"):
            hvd.grouped_allreduce([device, torch.ones(3, device="cuda:3")])

    run(2, NCCL, body)


def test_a_tensor_that_is_on_a_gpu_here_and_not_there() -> None:
    def body(rank: int) -> str:
        tensor = torch.ones(3, device="cuda") if rank else torch.ones(3)
        with pytest.raises(MismatchError) as caught:
            hvd.allreduce(tensor, name="mixed")
        return str(caught.value)

    for message in run(2, NCCL, body):
        assert "mixed" in message
        assert "rank 0" in message
        assert "rank 1" in message
        assert "GPU" in message


def test_other_devices_are_refused() -> None:
    class XpuTensor(torch.Tensor):
        device = torch.device("xpu", 0)  # type: ignore[assignment]
        is_cpu = is_cuda = False  # type: ignore[assignment]

    tensor = torch.ones(3).as_subclass(XpuTensor)
    with pytest.raises(UsageError, match=r"is on xpu:0; .* use tensor\.cpu\(\)"):
        view(tensor)


def test_nothing_is_captured(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with on_device(0), pytest.raises(UsageError, match="CUDA graph is being captured"):
        view(torch.ones(3, device="cuda"))


@pytest.mark.parametrize(
    ("current", "index", "local_rank", "text"),
    [
        (0, 1, 1, "a tensor is on cuda:1, but the current device is cuda:0"),
        (0, 0, 1, "all ranks of this host seem to use cuda:0, one of 4 devices"),
        (0, 0, 0, ""),
        (1, 1, 1, ""),
        (0, 0, 4, ""),  # more ranks than devices
    ],
)
def test_who_forgot_to_choose_a_device_is_told_once(
    current: int, index: int, local_rank: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_has_checked_place", False)
    config = Config(local_rank=local_rank)
    monkeypatch.setattr("horovod._rank.context.settings", lambda: config)
    with on_device(current):
        tensor = torch.ones(3, device=f"cuda:{index}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            view(tensor)
            view(tensor)
    said = [str(each.message) for each in caught]
    assert len(said) == bool(text)
    assert all(text in line and "torch.cuda.set_device" in line for line in said)


# --------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", RECIPES)
def test_training_over_nccl(name: str) -> None:
    recipe, tolerance = RECIPES[name]
    everyones = run(2, NCCL, train_distributed, recipe, "cuda")
    check_equal(everyones, train_alone(2, recipe), tolerance)


@pytest.mark.parametrize("way", [STAGED, SHARED], ids=["staged", "shared"])
@pytest.mark.parametrize("name", ["sgd", "many_groups", "bf16_groups", "clip"])
def test_training_through_host_memory(name: str, way: Way) -> None:
    recipe, tolerance = RECIPES[name]
    everyones = run(3, way, train_distributed, recipe, "cuda")
    check_equal(everyones, train_alone(3, recipe), tolerance)


@BOTH
@pytest.mark.parametrize("name", THREADED)
def test_scenario(name: str, way: Way) -> None:
    train, tolerance = SCENARIOS[name]

    def body(rank: int) -> list[torch.Tensor]:
        with torch.device("cuda"):  # where all tensors of the scenario are made
            return [each.cpu() for each in train(Job([rank], distributed=True))]

    check_equal(run(2, way, body), train(Job(range(2))), tolerance)


def test_parameters_on_two_gpus_of_a_rank() -> None:
    def body(rank: int) -> None:
        pair = [torch.nn.Parameter(torch.ones(3, device=f"cuda:{2 * rank + i}")) for i in (0, 1)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(pair, lr=1.0), groups=1)
        for param in pair:
            (param * (rank + 1)).sum().backward()
        optimizer.step()
        for param in pair:
            assert param.tolist() == [1.0 - 1.5] * 3

    run(2, NCCL, body)


def test_state_of_an_optimizer_goes_beside_its_parameter() -> None:
    def body(rank: int) -> None:
        param = torch.nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = torch.optim.Adam([param])
        if rank == 0:
            (param * 2).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        state = optimizer.state[param]
        assert state["exp_avg"].device == torch.device("cuda", rank)
        assert state["step"].device == torch.device("cpu")
        assert state["step"].item() == 1.0
        torch.testing.assert_close(state["exp_avg"].cpu(), torch.full((3,), 0.2))
        hvd.check_in_sync(optimizer)

    run(2, NCCL, body)


def test_parameters_on_a_gpu_are_compared() -> None:
    def body(rank: int) -> str:
        values = torch.arange(1000, dtype=torch.float32, device="cuda")
        hvd.check_in_sync([("same", values)])
        values[3] += rank
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.check_in_sync([("other", values)])
        return str(caught.value)

    assert all("other" in message for message in run(3, NCCL, body))


def test_batch_norm_looks_at_the_device_only_if_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(CudaTensor, "__bool__", lambda self: looks.append(1) or True, raising=False)

    def body(rank: int) -> None:
        layer = hvd.SyncBatchNorm(2).to("cuda")
        layer(torch.randn(3, 2, device="cuda").requires_grad_()).square().sum().backward()

    run(2, NCCL, body)
    assert looks == []


def test_adasum_of_steps() -> None:
    def body(rank: int) -> list[float]:
        param = torch.nn.Parameter(torch.zeros(4, device="cuda"))
        plain = torch.optim.SGD([param], lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum)
        weights = torch.tensor([1.0, 0.0, 0.0, 0.0]).roll(rank).to("cuda")
        (param * weights).sum().backward()
        optimizer.step()
        return list(param.tolist())

    # Steps that are orthogonal are added.
    assert run(2, NCCL, body) == [[-1.0, -1.0, 0.0, 0.0]] * 2


# --------------------------------------------------------------------------- no GPU, no cost


def test_tensors_on_the_cpu_load_nothing_for_gpus() -> None:
    program = (
        "import torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "hvd.allreduce(torch.ones(3)); hvd.join()\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert not torch.cuda.is_initialized()\n"
        "found = [name for name in ('cuda.so', 'nccl', 'rccl', 'amdhip') if name in maps]\n"
        "assert not found, found\n"
    )
    variables = {
        "HOROVOD_CUDA_LIBRARY": str(library("cuda")),
        "HOROVOD_NCCL_LIBRARY": str(library("nccl")),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
