"""What a commit of elastic training costs: how long it holds training up, and its file.

    python benchmarks/commit.py
    python benchmarks/commit.py --framework tensorflow
    python benchmarks/commit.py --mb 400 --directory /shared/commits

One rank commits a model of 100 MB on the CPU again and again, first in memory only,
then also into a file. Reported are the time for which ``commit()`` holds training up and its
processor time; of the file, the time until it is on the disk and the processor time of the thread
that writes it, of which training feels something only if no core is free.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from horovod._rank import context
from horovod._train.elastic.run import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.common.elastic import ObjectState

TENSORS = 50
EVERY_S = 10.0


def told(name: str, seconds: list[float]) -> None:
    """Prints one line."""
    median_s, worst_s = statistics.median(seconds), max(seconds)
    share = 100 * median_s / EVERY_S
    print(
        f"  {name:<30} {median_s * 1e3:7.1f} ms, worst {worst_s * 1e3:7.1f} ms: {share:5.2f} % of "
        f"{EVERY_S:g} s"
    )


def torch_state(numbers: int) -> tuple[ObjectState, Callable[[], None]]:
    """A state of tensors with so many numbers each, and what trains them."""
    import torch

    import horovod.torch as hvd

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.zeros(numbers) for _ in range(TENSORS))

    def train() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)

    return hvd.elastic.TorchState(model), train


def tensorflow_state(numbers: int) -> tuple[ObjectState, Callable[[], None]]:
    """The same with TensorFlow."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    variables = [tf.Variable(tf.zeros([numbers])) for _ in range(TENSORS)]

    def train() -> None:
        for variable in variables:
            variable.assign_add(tf.ones_like(variable))

    return hvd.elastic.TensorFlowState(variables), train


STATES = {"torch": torch_state, "tensorflow": tensorflow_state}


@run
def commit(state: ObjectState, step: Callable[[], None], commits: int) -> None:
    """Commits, and prints what that takes."""
    held, own, until_written, beside = [], [], [], []
    files = state._commits
    for turn in range(commits + 1):
        step()
        began_s, own_s, all_s = time.perf_counter(), time.thread_time(), time.process_time()
        state.commit()
        held.append(time.perf_counter() - began_s)
        own.append(time.thread_time() - own_s)
        if files is not None:
            files.finish(writes=True)
            until_written.append(time.perf_counter() - began_s)
            beside.append(time.process_time() - all_s - own[-1])
        if not turn:  # what only the first one costs
            for seconds in (held, own, until_written, beside):
                seconds.clear()
    told("commit()", held)
    told("its processor time", own)
    if files is not None:
        told("until the file is complete", until_written)
        told("processor time of the writer", beside)


def job(words: argparse.Namespace, directory: str) -> None:
    """One job with its own model."""
    os.environ["HOROVOD_CHECKPOINT_DIR"] = directory
    context.init()
    where = f"also into {directory}" if directory else "in memory only"
    print(f"{words.mb} MB with {words.framework}, {where}")
    state, step = STATES[words.framework](words.mb * 1_000_000 // 4 // TENSORS)
    commit(state, step, words.commits)
    context.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=100, help="size of the model")
    parser.add_argument("--commits", type=int, default=20, help="of each kind")
    parser.add_argument("--directory", help="for the files; a temporary one by default")
    parser.add_argument("--framework", choices=STATES, default="torch")
    words = parser.parse_args()
    job(words, "")
    if words.directory:
        job(words, words.directory)
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        job(words, directory)


if __name__ == "__main__":
    main()
