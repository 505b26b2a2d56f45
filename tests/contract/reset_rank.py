"""A worker of test_resets.py: one engine after the other in one process, each with another size.

Where its job is and what it does come over stdin. It tells one line in each of its generations.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "fakes")]

import torch
from checks import CHECKS
from torch_api import TorchApi

import horovod.torch as hvd
from horovod._job import StoreAddress
from horovod._job.worker import Dismissed, join
from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0
BATCH = 4


class Training:
    """A model with all that depends on the size, which every generation makes anew."""

    def __init__(self) -> None:
        self.model = _model()
        self.plain = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = hvd.elastic.TorchState(self.model, self.plain, generations=0)

    def run(self, generation: int) -> None:
        """Two passes and a step, as one process would do them with all ranks' samples."""
        self.state.sync()
        assert self.state.generations == generation, (self.state.generations, generation)
        alone = _model(synchronized=False)
        alone.load_state_dict(self.model.state_dict())
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1),
            named_parameters=self.model.named_parameters(),
            backward_passes_per_step=2,
        )
        plain.zero_grad()
        optimizer.zero_grad()
        for each in range(2):
            torch.manual_seed(generation * 2 + each)
            batch = torch.randn(hvd.size() * BATCH, 6)
            first = hvd.rank() * BATCH
            alone(batch).square().mean().backward()
            self.model(batch[first : first + BATCH]).square().mean().backward()
        optimizer.step()
        plain.step()
        for own, expected in zip(self.model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(own, expected, rtol=1e-4, atol=1e-5)
        everywhere = hvd.allgather(
            torch.nn.utils.parameters_to_vector(self.model.parameters())[None]
        )
        assert bool((everywhere == everywhere[0]).all())
        self.state.generations += 1
        self.state.save()


def _model(*, synchronized: bool = True) -> torch.nn.Module:
    torch.manual_seed(0)
    norm = hvd.SyncBatchNorm(5) if synchronized else torch.nn.BatchNorm1d(5)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), norm, torch.nn.Linear(5, 2))


def counts() -> dict[str, int]:
    """What this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": min(_threads()),
        "kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
    }


def _threads() -> Iterator[int]:
    """Some looks: a thread that was joined is listed for a moment longer."""
    for _ in range(20):
        yield len(os.listdir("/proc/self/task"))
        time.sleep(0.01)


def live(worker: Any, told: dict[str, Any]) -> None:
    """Until it is dismissed."""
    training = Training()
    generation = -1
    while True:
        assignment = worker.await_place(generation, PATIENCE_S)
        generation = assignment.place.generation
        context.init(job=assignment)
        training.run(generation)
        done = []
        if generation in told["checked"]:
            for check in CHECKS:
                if check.__module__ in told["modules"]:
                    check(TorchApi(), hvd.rank(), hvd.size())
                    done.append(check.__name__)
        report: dict[str, Any] = {"generation": generation, "size": hvd.size(), "checks": done}
        hvd.shutdown()
        if generation in told["counted"]:
            report["counts"] = counts()
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def main() -> None:
    told = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    store = StoreAddress(told["address"], told["port"], bytes.fromhex(told["secret"]))
    with join(store, "a", int(sys.argv[1])) as worker:
        try:
            live(worker, told)
        except Dismissed:
            hvd.shutdown()


if __name__ == "__main__":
    main()
