"""What ranks do with shared_memory_hook in tests; each function runs in a process of its own."""

from __future__ import annotations

import gc
import os
import signal
import time
from contextlib import nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from process_ranks import RANK, SIZE, begin, note_error, resources
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from horovod.errors import UnsupportedError, UsageError
from horovod.torch.distributed import SharedMemoryState, shared_memory_hook

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 7
WIDTH = 48


class Branches(nn.Module):
    """Layers of which each step leaves out one, another one on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for index, layer in enumerate(self.layers):
            if index != (self.calls + RANK) % 4:
                x = torch.tanh(layer(x))
        return x


def layers() -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])


def wrap(
    group: Any,
    make: Callable[[], nn.Module] = layers,
    dtype: torch.dtype = torch.float32,
    hook: bool = True,
    **options: Any,
) -> tuple[DistributedDataParallel, SharedMemoryState | None]:
    """Return a model of several buckets, and the state of its hook."""
    torch.manual_seed(5)
    model = DistributedDataParallel(
        make().to(dtype), process_group=group, bucket_cap_mb=0.01, **options
    )
    if not hook:
        return model, None
    state = SharedMemoryState(model)
    model.register_comm_hook(state, shared_memory_hook)
    return model, state


def train(
    model: nn.Module, steps: int = STEPS, accumulate: int = 1, seed: int = 0
) -> list[torch.Tensor]:
    """Train and return copies of the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(RANK + seed)
    dtype = next(model.parameters()).dtype
    for step in range(steps * accumulate):
        is_last = (step + 1) % accumulate == 0
        with nullcontext() if is_last else model.no_sync():
            x = torch.randn(4, WIDTH, generator=generator).to(dtype)
            model(x).square().mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return [param.detach().clone() for param in model.parameters()]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"make": Branches, "find_unused_parameters": True},
    "unused views": {
        "make": Branches,
        "find_unused_parameters": True,
        "gradient_as_bucket_view": True,
    },
    "static graph": {"static_graph": True},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16, "gradient_as_bucket_view": True},
    "float64": {"dtype": torch.float64},
    "accumulated": {"accumulate": 3},
    "accumulated views": {"accumulate": 3, "gradient_as_bucket_view": True},
}


def equals(folder: str) -> list[str]:
    """Return the cases whose weights differ from those without the hook, on gloo if it may be.

    Gloo adds the values of three ranks in another order, so the peer is this backend then.
    """
    begin(folder)
    peer = dist.new_group(backend="gloo") if SIZE == 2 else None
    wrong = []
    for name, case in CASES.items():
        options = {**case}
        accumulate = options.pop("accumulate", 1)
        model, state = wrap(None, **options)
        expected = train(wrap(peer, hook=False, **options)[0], accumulate=accumulate)
        got = train(model, accumulate=accumulate)
        if not all(map(torch.equal, got, expected)):
            wrong.append(f"{name}: {got} instead of {expected}")
        whole = sum(param.nbytes for param in model.parameters())
        if state is None or state.shared_bytes != whole:
            wrong.append(f"{name}: {state and state.shared_bytes} of {whole} bytes are shared")
    if not numpy_follows():
        wrong.append("arrays of NumPy are not where the gradients are")
    joined = [trained_unevenly(group, hook) for group, hook in ((None, True), (peer, False))]
    if not all(map(torch.equal, *joined)):
        wrong.append(f"join: {joined}")
    dist.destroy_process_group()
    return wrong


def numpy_follows() -> bool:
    """Whether arrays of NumPy, made before the buckets move, are in shared memory afterwards."""
    model, state = wrap(None, gradient_as_bucket_view=True)
    arrays = []
    for _ in range(STEPS):
        model.zero_grad()
        model(torch.ones(4, WIDTH)).square().mean().backward()
        gradients = [param.grad for param in model.parameters() if param.grad is not None]
        arrays.append([gradient.numpy() for gradient in gradients])
    assert state is not None
    assert state.shared_bytes == sum(param.nbytes for param in model.parameters())
    # The buckets of the first step are others.
    places = [[array.ctypes.data for array in step] for step in arrays[1:]]
    return places == [[gradient.data_ptr() for gradient in gradients]] * (STEPS - 1)


def trained_unevenly(group: Any, hook: bool) -> list[torch.Tensor]:
    """Train on more batches on higher ranks, then on equally many."""
    model, state = wrap(group, hook=hook, gradient_as_bucket_view=True)
    with Join([model]):
        train(model, STEPS + 2 * RANK)
    weights = train(model)
    assert state is None or state.shared_bytes == sum(p.nbytes for p in model.parameters())
    return weights


def lives(folder: str) -> bool:
    """Two models take turns; memory goes with the last gradient; groups begin again."""
    before = {}
    for turn in range(6):
        begin(folder, name=f"store{turn}")
        pair = [wrap(None, gradient_as_bucket_view=True) for _ in range(2)]
        for _ in range(2):
            for number, (model, _) in enumerate(pair):
                train(model, seed=100 * number)
        expected = [train(wrap(None, hook=False)[0], seed=100 * n) for n in range(2)]
        assert not any(map(torch.equal, *expected))  # so that a mistaken bucket would show
        assert all(state is not None and state.shared_bytes for _, state in pair)
        keep_a_gradient(pair[0][0])
        del model, pair, _
        dist.destroy_process_group()
        gc.collect()
        if turn == 2:
            before = resources()
    after = resources()
    assert after["shared bytes"] == before["shared bytes"], (before, after)
    assert after["descriptors"] <= before["descriptors"] + 3, (before, after)
    return True


def keep_a_gradient(model: DistributedDataParallel) -> None:
    """Gradients in shared memory can outlive the model, be copied and saved, but not be sent."""
    model(torch.ones(2, WIDTH)).sum().backward()
    gradient = model.module[0].weight.grad
    expected = gradient.clone()
    with pytest.raises(UnsupportedError, match=r"send tensor.clone\(\)"):
        ForkingPickler.dumps(gradient)
    assert torch.equal(gradient, expected)
    weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    weight.grad = gradient
    model.zero_grad()
    del model
    gc.collect()
    assert torch.equal(weight.grad, expected)


def wrong_uses(folder: str) -> bool:
    begin(folder)
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(UsageError, match="not one of the backend horovod"):
        SharedMemoryState(wrap(gloo, hook=False)[0])
    with pytest.raises(UsageError, match="give the DistributedDataParallel"):
        SharedMemoryState(layers())  # type: ignore[arg-type]
    first, second = (wrap(None, hook=False)[0] for _ in range(2))
    x = torch.ones(1, WIDTH)
    first.register_comm_hook(SharedMemoryState(second), shared_memory_hook)
    with pytest.raises(UsageError, match="that of another model"):
        first(x).sum().backward()
    second.register_comm_hook(None, shared_memory_hook)
    with pytest.raises(UsageError, match="the state is None: model"):
        second(x).sum().backward()
    third, _ = wrap(None)
    with (
        pytest.raises(UsageError, match="divide_by_initial_world_size=False"),
        Join([third], divide_by_initial_world_size=False),
    ):
        third(x).sum().backward()
    dist.destroy_process_group()
    return True


def in_private_memory(folder: str, members: list[int]) -> bool:
    """A group of some ranks, or of several hosts: equal results, in ordinary memory."""
    begin(folder)
    group = dist.new_group(members) if members else dist.group.WORLD
    if not members or RANK in members:
        model, state = wrap(group, gradient_as_bucket_view=True)
        got = train(model)
        assert all(map(torch.equal, got, train(wrap(group, hook=False)[0])))
        assert state is not None
        assert state.shared_bytes == 0
    dist.barrier()  # the others make the group while this rank is there
    dist.destroy_process_group()
    return True


def lose_a_rank(folder: str) -> None:
    """Rank 1 dies when the buckets are in shared memory; they leave it on the others."""
    begin(folder)
    model, state = wrap(None, gradient_as_bucket_view=True)
    train(model)
    assert state is not None
    assert state.shared_bytes
    loss = model(torch.ones(2, WIDTH)).sum()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        loss.backward()
    except RuntimeError as error:
        # The first bucket that fails ends the backward pass; others may still be on their way.
        give_up_at = time.monotonic() + 30
        while state.shared_bytes and time.monotonic() < give_up_at:
            time.sleep(0.01)
        note_error(folder, RuntimeError(f"{error} ({state.shared_bytes} bytes are shared)"))
        raise
