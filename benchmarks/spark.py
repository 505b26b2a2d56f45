"""Reading and training of the Spark estimators, beside pyarrow alone and TorchDistributor.

    python benchmarks/spark.py --reader --rounds 5
    python benchmarks/spark.py --training --rounds 5

Needs PySpark and pyarrow. The files, 10 million rows of 40 float32 columns by default, are made
once in the folder that ``--folder`` names, 1.6 GB; they are in the page cache when the rounds
begin. The ways take turns.

- ``--reader``: each way reads all files in a process of its own. What is measured: rows a second
  from the first call to the last batch, processor time, and by how much the memory of the process
  grew at most.
- ``--training``: two ranks of a local cluster of Spark train an MLP on the files, shuffled, with
  the same model, optimizer, batches and number of steps in each way. What is measured: seconds
  from the call to the first loss, and samples a second of both ranks from there to the last loss,
  on the slowest rank. All processes compute with one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCAN = "pyarrow.dataset scan"
WAYS = {
    SCAN: None,
    "reader, shuffled": {"shuffle": True},
    "reader, file order": {"shuffle": False},
}
NUM_FILES = 12


def make_files(folder: Path, num_rows: int, num_columns: int) -> None:
    """Writes files of one row group each, about 128 MiB by default, as Spark does."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(NUM_FILES):
        rows = num_rows * (number + 1) // NUM_FILES - num_rows * number // NUM_FILES
        columns = {
            f"c{column}": generator.standard_normal(rows, dtype=np.float32)
            for column in range(num_columns)
        }
        path = folder / f"part-{number:05}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=rows, use_dictionary=False)


def memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(name))) * 1024


def read_once(way: str, folder: str, batch_size: int) -> dict[str, Any]:
    """What a process does: it reads everything in one way."""
    import pyarrow.dataset

    from horovod.spark.data.reader import ParquetReader

    dataset = pyarrow.dataset.dataset(folder)
    before = memory("VmRSS")
    # From here on the highest mark counts.
    Path("/proc/self/clear_refs").write_text("5")
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    rows = 0
    options = WAYS[way]
    if options is None:
        for batch in dataset.to_batches():
            rows += batch.num_rows
    else:
        columns = dataset.schema.names
        with ParquetReader(folder, columns=columns, batch_size=batch_size, **options) as reader:
            for batch in reader.batches(0):
                rows += len(batch[columns[0]])
    return {
        "rows": rows,
        "seconds": time.perf_counter() - began_s,
        "cpu_seconds": time.process_time() - began_cpu_s,
        "bytes": memory("VmHWM") - before,
    }


def run_process(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Reads everything in one way, in a process of its own."""
    command = [sys.executable, __file__, "--way", way, "--folder", str(args.folder)]
    command += ["--batch-size", str(args.batch_size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    if found["rows"] != args.rows:
        raise SystemExit(f"{way}: read {found['rows']} of {args.rows} rows")
    return dict(found)


def measure_reader(args: argparse.Namespace) -> None:
    """Prints a table of all ways."""
    if not args.folder.exists():
        make_files(args.folder, args.rows, args.columns)
    row_group = args.rows // NUM_FILES * args.columns * 4
    print(
        f"{args.rows:,} rows x {args.columns} float32, batches of {args.batch_size}, row groups of"
    )
    print(f"{row_group / 2**20:.0f} MiB; load average before: {os.getloadavg()[0]:.1f}\n")
    run_process(SCAN, args)
    rounds = [{way: run_process(way, args) for way in WAYS} for _ in range(args.rounds)]
    print("| way | rows/s | of the scan | processor time | most memory | in row groups |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for way in WAYS:
        speed = statistics.median(args.rows / each[way]["seconds"] for each in rounds)
        share = statistics.median(each[SCAN]["seconds"] / each[way]["seconds"] for each in rounds)
        cpu_s = statistics.median(each[way]["cpu_seconds"] for each in rounds)
        most = max(each[way]["bytes"] for each in rounds)
        print(
            f"| {way} | {speed / 1e6:.2f} million | {share:.0%} | {cpu_s:.2f} s "
            f"| {most / 2**20:.0f} MiB | {most / row_group:.2f} |"
        )


# ---- Training

NUM_RANKS = 2
LEARNING_RATE = 1e-3
DISTRIBUTOR = "TorchDistributor, DDP, DataLoader"
RUN = "horovod.spark.run, ParquetReader"


@dataclass(frozen=True)
class Training:
    """What all ways train.

    Attributes:
        files: the folder of the files.
        marks: the folder where ranks write when they began and ended.
        columns: of the files; the last one is the label.
        batch_size: rows of a rank and step.
        steps: of each rank in an epoch.
        epochs: how many.
        width: of the two hidden layers.
    """

    files: str
    marks: str
    columns: list[str]
    batch_size: int
    steps: int
    epochs: int
    width: int

    def model(self) -> Any:
        """An MLP that takes each column as a tensor of its own."""
        import torch

        class Mlp(torch.nn.Module):
            def __init__(self, num_inputs: int, width: int) -> None:
                super().__init__()
                self.layers = torch.nn.Sequential(
                    torch.nn.Linear(num_inputs, width),
                    torch.nn.ReLU(),
                    torch.nn.Linear(width, width),
                    torch.nn.ReLU(),
                    torch.nn.Linear(width, 1),
                )

            def forward(self, *columns: torch.Tensor) -> Any:
                return self.layers(torch.cat(columns, 1))

        torch.manual_seed(0)
        return Mlp(len(self.columns) - 1, self.width)

    def loss(self) -> Callable[[Any, Any], Any]:
        """The mean squared error; it writes down when it was called first and last."""
        count, first_s, steps, folder = 0, 0.0, self.steps * self.epochs, self.marks

        def marked(output: Any, label: Any) -> Any:
            import os
            import time
            from pathlib import Path

            import torch

            nonlocal count, first_s
            count += 1
            first_s = first_s or time.time()
            if count == steps:
                text = f"{first_s} {time.time()}"
                (Path(folder) / f"{os.getpid()}.marks").write_text(text)
            return torch.nn.functional.mse_loss(output, label)

        return marked

    def train(self, model: Any, optimizer: Any, batches: Iterator[Any]) -> None:
        """The steps of one epoch after the other; a batch is a tensor (rows, 1) for each column."""
        loss = self.loss()
        for columns in itertools.islice(batches, self.steps * self.epochs):
            optimizer.zero_grad()
            loss(model(*columns[:-1]), columns[-1]).backward()
            optimizer.step()


def by_distributor(training: Training, workers: int) -> None:
    """What a rank of TorchDistributor does; row groups and the rows in each are shuffled."""
    import random

    import numpy as np
    import pyarrow.dataset
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()

    class Files(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[list[torch.Tensor]]:
            fragments = list(pyarrow.dataset.dataset(training.files).get_fragments())[rank::size]
            while True:
                random.shuffle(fragments)
                for fragment in fragments:
                    yield from self._batches(fragment.to_table(columns=training.columns))

        def _batches(self, table: Any) -> Iterator[list[torch.Tensor]]:
            columns = [column.to_numpy() for column in table.columns]
            order = np.random.permutation(table.num_rows)
            for begin in range(0, table.num_rows, training.batch_size):
                rows = order[begin : begin + training.batch_size]
                yield [torch.from_numpy(column[rows]).reshape(-1, 1) for column in columns]

    model = DistributedDataParallel(training.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    loader = torch.utils.data.DataLoader(Files(), batch_size=None, num_workers=workers)
    training.train(model, optimizer, iter(loader))
    distributed.destroy_process_group()


def by_run(training: Training) -> None:
    """What a rank of horovod.spark.run does."""
    import torch

    import horovod.torch as hvd
    from horovod.spark.data.reader import ParquetReader

    hvd.init()
    model = training.model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    with ParquetReader(
        training.files,
        columns=training.columns,
        batch_size=training.batch_size,
        rank=hvd.rank(),
        size=hvd.size(),
    ) as reader:
        batches = (
            [torch.from_numpy(batch[name]).reshape(-1, 1) for name in training.columns]
            for epoch in range(training.epochs)
            for batch in reader.batches(epoch, training.steps)
        )
        training.train(model, optimizer, batches)


def fit_estimator(training: Training, store: str) -> None:
    """What a user of TorchEstimator does: the files are in the store already."""
    import torch

    from horovod.spark.common.store import Store
    from horovod.spark.torch import TorchEstimator

    model = training.model()
    TorchEstimator(
        num_proc=NUM_RANKS,
        store=Store.create(store, train_path=training.files),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE / NUM_RANKS),
        loss=training.loss(),
        feature_cols=training.columns[:-1],
        label_cols=training.columns[-1:],
        input_shapes=[[-1, 1]] * (len(training.columns) - 1),
        label_shapes=[[-1, 1]],
        batch_size=training.batch_size,
        train_steps_per_epoch=training.steps,
        epochs=training.epochs,
        verbose=0,
    ).fit_on_parquet()


def distribute(training: Training, workers: int) -> None:
    """What a user of TorchDistributor does."""
    from pyspark.ml.torch.distributor import TorchDistributor

    TorchDistributor(num_processes=NUM_RANKS, local_mode=False, use_gpu=False).run(
        by_distributor, training, workers
    )


def run_ranks(training: Training, store: str) -> None:
    """What a user of horovod.spark.run does."""
    import horovod.spark

    horovod.spark.run(by_run, (training,), num_proc=NUM_RANKS, verbose=0)


TRAINING_WAYS: dict[str, Callable[[Training, str], None]] = {
    DISTRIBUTOR: lambda training, store: distribute(training, 0),
    f"{DISTRIBUTOR} with a worker": lambda training, store: distribute(training, 1),
    RUN: run_ranks,
    "TorchEstimator": fit_estimator,
}


def train_once(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Trains in one way: seconds to the first loss, and samples a second from there on."""
    with tempfile.TemporaryDirectory(prefix="horovod-benchmark-") as folder:
        training = Training(
            files=str(args.folder),
            marks=folder,
            columns=[f"c{column}" for column in range(args.columns)],
            batch_size=args.batch_size,
            steps=args.rows // args.batch_size // NUM_RANKS,
            epochs=args.epochs,
            width=args.width,
        )
        began_s = time.time()
        TRAINING_WAYS[way](training, f"{folder}/store")
        texts = [path.read_text() for path in Path(folder).glob("*.marks")]
        if len(texts) != NUM_RANKS:
            raise SystemExit(f"{way}: {len(texts)} of {NUM_RANKS} ranks took all steps")
        firsts, lasts = zip(*(map(float, text.split()) for text in texts), strict=True)
        samples = (training.steps * training.epochs - 1) * args.batch_size * NUM_RANKS
        return {
            "first_s": max(firsts) - began_s,
            "samples_per_s": samples / (max(lasts) - max(firsts)),
        }


def measure_training(args: argparse.Namespace) -> None:
    """Prints a table of all ways of training."""
    from pyspark.sql import SparkSession

    if not args.folder.exists():
        make_files(args.folder, args.rows, args.columns)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the executors, too: they are children of this process
    load_average = os.getloadavg()[0]
    session = (
        SparkSession.builder.master(f"local-cluster[{NUM_RANKS},1,1024]")
        .appName("benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.range(0, NUM_RANKS, 1, NUM_RANKS).rdd.map(str).collect()  # the executors are there
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(args.rounds):
        # Nobody always comes first, or always after the same one.
        shift = number % len(args.ways)
        order = (*args.ways[shift:], *args.ways[:shift])
        rounds.append({way: train_once(way, args) for way in order})
        print(f"round {number + 1} of {args.rounds}: {rounds[-1]}", file=sys.stderr, flush=True)
    session.stop()
    show_training(args, rounds, load_average)


def show_training(
    args: argparse.Namespace, rounds: list[dict[str, dict[str, float]]], load_average: float
) -> None:
    """The table of all ways; a ratio is the median of those within the rounds."""
    rest = [way for way in args.ways if DISTRIBUTOR in way]
    print(
        f"{NUM_RANKS} ranks, an MLP of {args.columns - 1} - {args.width} - {args.width} - 1, "
        f"{args.rows:,} rows, batches of\n{args.batch_size}, {args.epochs} epochs; medians of "
        f"{args.rounds} rounds; load average before: {load_average:.1f}\n"
    )
    print("| way | samples/s | of the better TorchDistributor | first loss after |")
    print("| --- | ---: | ---: | ---: |")
    for way in args.ways:
        speed = statistics.median(each[way]["samples_per_s"] for each in rounds)
        first_s = statistics.median(each[way]["first_s"] for each in rounds)
        shares = [
            each[way]["samples_per_s"] / max(each[other]["samples_per_s"] for other in rest)
            for each in rounds
            if rest
        ]
        share = f"{statistics.median(shares):.0%}" if shares else "not measured"
        print(f"| {way} | {speed:,.0f} | {share} | {first_s:.1f} s |")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", action="store_true", help="measure the reader")
    parser.add_argument("--training", action="store_true", help="measure training")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "horovod-benchmark-parquet"
    )
    parser.add_argument("--epochs", type=int, default=1, help="of training")
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers")
    parser.add_argument("--ways", nargs="+", choices=TRAINING_WAYS, default=list(TRAINING_WAYS))
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(read_once(args.way, str(args.folder), args.batch_size)))
        return
    if not args.reader and not args.training:
        parser.error("say what to measure: --reader or --training")
    if args.reader:
        measure_reader(args)
    if args.training:
        measure_training(args)


if __name__ == "__main__":
    main()
