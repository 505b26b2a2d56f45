"""A worker of an elastic job that trains with PyTorch; run by test_elastic_workers.py.

Its plan: "until": it trains two steps in this generation, then ends. "commits": whether it commits
each step, or only looks for changes. "shard_state": whether each rank keeps only its share of the
optimizer state. "dies": [place, generation] where it kills itself: "sync",
"callback" or "start".
"""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

STEPS_AT_THE_END = 2
STEPS_BEFORE_CHANGES = 4

PLAN: dict[str, Any] = {}
PIPE: list[Connection] = []


def tell(**report: Any) -> None:
    """Of which the test reads one after the other."""
    place = {"rank": hvd.rank(), "size": hvd.size(), "generation": hvd.elastic.generation()}
    PIPE[0].send(report | place)


def die_at(place: str) -> None:
    """Ends the process as the kernel does when memory runs out, if the plan says so."""
    if PLAN.get("dies") == [place, hvd.elastic.generation()]:
        os.kill(os.getpid(), signal.SIGKILL)


class State(hvd.elastic.TorchState):
    """Can die in the middle of a sync."""

    def sync(self) -> None:
        self._handlers["model"].root = self.sync_root
        self._handlers["model"].sync()
        die_at("sync")
        super().sync()


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Tells tensors apart that differ in one bit."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(name.encode() + torch.as_tensor(tensor).detach().numpy().tobytes())
    return hashed.hexdigest()[:16]


def digests(state: State) -> dict[str, str]:
    """What is the same on all ranks at any time, and what is it after a sync."""
    moments = {
        f"{number} {name}": value
        for number, values in state.optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    return {
        "digest": digest(dict(state.model.named_parameters()) | moments),
        "buffers": digest(dict(state.model.named_buffers())),
    }


def make_state() -> State:
    """Of a rank that knows nothing of others: its own random numbers."""
    torch.manual_seed(os.getpid())
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
        named_parameters=model.named_parameters(),
        shard_state=PLAN.get("shard_state", False),
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    state = State(model, optimizer, scheduler=scheduler, step=0, log=[])
    state.register_reset_callbacks([lambda: die_at("callback")])
    return state


def take_step(state: State) -> None:
    """All ranks have other samples."""
    generator = torch.Generator().manual_seed(1000 * state.step + hvd.rank())
    state.optimizer.zero_grad()
    state.model(torch.randn(4, 8, generator=generator)).square().mean().backward()
    state.optimizer.step()
    state.scheduler.step()
    state.step += 1
    state.log.append(state.step)


@hvd.elastic.run
def train(state: State) -> int:
    """Ends when the generation of the plan has trained for a while."""
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="first").item()
    tell(
        begins=state.step,
        at_s=time.monotonic(),
        total=total,
        **digests(state),
        rate=state.scheduler.get_last_lr()[0],
        log=len(state.log),
        told=[os.environ[f"HOROVOD_{name}"] for name in ("RANK", "SIZE")],
        limits=(hvd.min_size(), hvd.max_size()),
    )
    left = STEPS_AT_THE_END
    while left:
        take_step(state)
        if state.step == STEPS_BEFORE_CHANGES:
            tell(trained=state.step)
        if hvd.elastic.generation() >= PLAN["until"]:
            left -= 1
        if PLAN.get("commits", True):
            state.commit()
        else:
            state.check_host_updates()
    return state.step


def work() -> None:
    """What a script does."""
    hvd.init()
    tell(joined=True)
    die_at("start")
    state = make_state()
    tell(made=True)
    last = train(state)
    steps = hvd.allgather(torch.tensor([last]), name="steps").tolist()
    tell(ends=last, digest=digests(state)["digest"], same=len(set(steps)) == 1)


def main(environ: Mapping[str, str], plan: Mapping[str, Any], pipe: Connection) -> None:
    """The whole process, which is forked with all modules that it needs."""
    os.environ.update(environ)
    PLAN.update(plan)
    PIPE.append(pipe)
    torch.set_num_threads(1)
    try:
        work()
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them
