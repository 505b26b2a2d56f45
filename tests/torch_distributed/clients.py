"""What uses ``torch.distributed`` in its own way, each a function that returns tensors.

``tests/clients`` has libraries and complete trainings.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Weights = list[torch.Tensor]
STEPS = 4


class Perceptron(nn.Module):
    """Two layers, and one that only some passes use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 4)
        self.sometimes = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, uses_all: bool = True) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return self.sometimes(y) if uses_all else y


def model() -> Perceptron:
    torch.manual_seed(3)
    return Perceptron()


def batches(rank: int, count: int = STEPS) -> Iterator[torch.Tensor]:
    for step in range(count):
        yield torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def full(weights: Iterator[nn.Parameter]) -> Weights:
    """Return copies of weights."""
    return [weight.detach().clone() for weight in weights]


def step(module: nn.Module, optimizer: torch.optim.Optimizer, *inputs: Any) -> None:
    optimizer.zero_grad()
    module(*inputs).square().mean().backward()
    optimizer.step()


def ddp(prepare: Callable[[DistributedDataParallel], object] | None = None, **options: Any) -> Any:
    """Return a client that trains with DistributedDataParallel."""

    def train(rank: int) -> Weights:
        # Small buckets, so that there are several of them.
        module = DistributedDataParallel(model(), bucket_cap_mb=0.0005, **options)
        if prepare is not None:
            prepare(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for x in batches(rank):
            step(module, optimizer, x)
        return full(module.parameters())

    return train


def power_sgd(module: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def overlapping_groups(rank: int) -> Weights:
    """Groups of all, of one and of both ranks again, several of them in flight."""
    everyone, again = dist.new_group([0, 1]), dist.new_group([0, 1])
    alone = [dist.new_group([member]) for member in (0, 1)]
    tensors = [torch.full((3000,), float(rank + index)) for index in range(3)]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for tensor, group in zip(tensors, (everyone, again, alone[rank]), strict=True)
    ]
    for work in reversed(works):
        work.wait()
    dist.destroy_process_group(again)
    dist.all_reduce(tensors[0], group=everyone)
    dist.barrier(group=everyone)
    return tensors


def objects(rank: int) -> Weights:
    """Collectives of objects, which PyTorch builds on those of tensors."""
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (rank + 1)})
    listed: list[Any] = [rank, "of", 2]
    dist.broadcast_object_list(listed, src=1)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [["a"], ["bc"]] if rank == 0 else None, src=0)
    onto_root: list[Any] | None = [None, None] if rank == 0 else None
    dist.gather_object((rank, mine), onto_root, dst=0)
    if rank == 0:
        dist.send_object_list([onto_root], dst=1)
    else:
        received = [None]
        dist.recv_object_list(received, src=0)
        onto_root = received[0]
    assert gathered == [{"rank": 0, "text": "x"}, {"rank": 1, "text": "xx"}]
    assert listed == [1, "of", 2]
    assert onto_root == [(0, [["a"]]), (1, [["bc"]])]
    return []


def messages(rank: int) -> Weights:
    """A batch of sends and receives that no order of waiting could break."""
    other = 1 - rank
    sent = [torch.full((4000,), 2.0 * rank), torch.full((2, 2), 3.0 + rank)]
    received = [torch.zeros(4000), torch.zeros(2, 2)]
    batch = [dist.P2POp(dist.irecv, tensor, other) for tensor in received]
    batch += [dist.P2POp(dist.isend, tensor, other) for tensor in sent]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    if rank == 0:
        dist.send(sent[0], 1, tag=4)
    else:
        assert dist.recv(received[0], tag=4) == 0
    return received


def functional_collectives(rank: int) -> Weights:
    """What compiled programs call, as functions of tensors."""
    import torch.distributed._functional_collectives as functional

    x = torch.arange(4.0) + rank
    size = dist.get_world_size()
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    gathered = functional.all_gather_tensor(x, 0, dist.group.WORLD)
    share = functional.reduce_scatter_tensor(gathered * (rank + 1), "sum", 0, dist.group.WORLD)
    exchanged = functional.all_to_all_single(gathered, None, None, dist.group.WORLD)
    coalesced = functional.all_reduce_coalesced([x, 2 * x], "sum", dist.group.WORLD)
    results = [total, gathered, share, exchanged, *coalesced]
    assert gathered.numel() == 4 * size
    return [torch.as_tensor(result).clone() for result in results]


CLIENTS: dict[str, Callable[[int], Weights]] = {
    "ddp": ddp(),
    "ddp PowerSGD hook": ddp(power_sgd),
    "overlapping groups": overlapping_groups,
    "objects": objects,
    "messages": messages,
    "functional collectives": functional_collectives,
}


def train_all(backend: str, rank: int, size: int, store: str) -> dict[str, Weights]:
    """Train with every client in one process group of all ranks."""
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        return {name: copy.deepcopy(client(rank)) for name, client in CLIENTS.items()}
    finally:
        dist.destroy_process_group()
