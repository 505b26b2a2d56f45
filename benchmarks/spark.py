"""The Parquet reader of the Spark estimators beside a scan by pyarrow alone.

    python benchmarks/spark.py --reader --rounds 5

Needs PySpark and pyarrow. The files, 10 million rows of 40 float32 columns by default, are made
once in the folder that ``--folder`` names, 1.6 GB; they are in the page cache when the rounds
begin. Each way reads all of them in a process of its own, and the ways take turns. What is
measured: rows a second from the first call to the last batch, processor time, and by how much the
memory of the process grew at most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", action="store_true", help="measure the reader")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "horovod-benchmark-parquet"
    )
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(read_once(args.way, str(args.folder), args.batch_size)))
    elif args.reader:
        measure_reader(args)
    else:
        parser.error("say what to measure: --reader")


if __name__ == "__main__":
    main()
