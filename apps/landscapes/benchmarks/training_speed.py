"""Pictures a second of training on 1, 2 and 4 ranks of this machine, and what communication costs.

    python benchmarks/training_speed.py [--preset tiny64] [--batch 4] [--steps 12] [--rounds 3]

Rounds of all numbers of ranks take turns, and the best step of each counts, because other programs
may run beside. Processor time per picture hardly depends on those. The share of communication is
taken from the timeline of rank 0: time in which at least one operation moved data, over the time of
the steps. It includes waiting for ranks that have no core at that moment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANKS = (1, 2, 4)
WARM_UP = 3


def measure(preset: str, batch: int, steps: int, out: Path) -> None:
    """Take steps on random pictures; write the seconds of each to ``out``, one file for a rank."""
    import torch

    import horovod.torch as hvd
    from landscapes.losses import Perceptual
    from landscapes.nets import preset_named
    from landscapes.nets.segmenter import Segmenter
    from landscapes.train.batches import Batch
    from landscapes.train.networks import Networks
    from landscapes.train.run import GUIDE_WIDTH
    from landscapes.train.step import Trainer

    hvd.init()
    sizes = preset_named(preset)
    trainer = Trainer(Networks(sizes, 0), Perceptual(Segmenter(GUIDE_WIDTH)))
    shape = (batch, 3, sizes.size, sizes.size)
    labels = torch.randint(0, 9, (batch, sizes.size, sizes.size), dtype=torch.uint8)
    drawn = Batch(torch.rand(shape) * 2 - 1, labels, torch.randn(batch, sizes.z_dim))
    found: list[tuple[float, float]] = []
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            hvd.start_timeline(str(out / "timeline.json"))
        begun = time.perf_counter(), time.process_time()
        trainer.step(drawn, step + 1)
        ended = time.perf_counter(), time.process_time()
        found.append((ended[0] - begun[0], ended[1] - begun[1]))
    hvd.stop_timeline()
    (out / f"rank{hvd.rank()}.json").write_text(json.dumps(found[WARM_UP:]))
    hvd.shutdown()


def moving_s(timeline: Path) -> float:
    """Return for how many seconds operations of rank 0 moved data, overlaps counted once."""
    events = json.loads(timeline.read_text().rstrip().rstrip(",").rstrip("]") + "]")
    open_at: dict[int, list[tuple[str, float]]] = {}
    intervals = []
    for event in events:
        if event.get("pid") != 0:
            continue
        if event["ph"] == "B":
            open_at.setdefault(event["tid"], []).append((event["name"], event["ts"]))
        elif event["ph"] == "E" and open_at.get(event["tid"]):
            name, since = open_at[event["tid"]].pop()
            if not name.startswith("NEGOTIATE"):
                intervals.append((since, event["ts"]))
    total, reached = 0.0, 0.0
    for since, until in sorted(intervals):
        total += max(0.0, until - max(since, reached))
        reached = max(reached, until)
    return total / 1e6


def run_round(arguments: argparse.Namespace, ranks: int) -> dict[str, float]:
    """Start a job and return its best step, processor time per picture, and share of moving."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"--preset={arguments.preset}", f"--batch={arguments.batch}"]
        ended = subprocess.run(
            [
                *["horovodrun", "-np", str(ranks), sys.executable, __file__, *own],
                *[f"--steps={arguments.steps}", f"--measure={folder}"],
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise SystemExit(f"{ended.stdout}horovodrun -np {ranks} ended with {ended.returncode}.")
        files = sorted(Path(folder).glob("rank*.json"))
        steps: list[Any] = [json.loads(file.read_text()) for file in files]
        moved = moving_s(Path(folder) / "timeline.json")
    walls = [max(rank[number][0] for rank in steps) for number in range(arguments.steps)]
    processor = sum(step[1] for rank in steps for step in rank)
    pictures = ranks * arguments.batch
    return {
        "img_per_s": pictures / min(walls),
        "cpu_ms_per_img": 1000 * processor / (pictures * arguments.steps),
        "moving_share": moved / sum(wall for wall, _ in steps[0]),
    }


def main() -> None:
    """Measure, or be a rank of a job that measures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="tiny64")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=Path)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.preset, arguments.batch, arguments.steps, arguments.measure)
        return
    rounds: dict[int, list[dict[str, float]]] = {ranks: [] for ranks in RANKS}
    for _ in range(arguments.rounds):
        for ranks in RANKS:
            rounds[ranks].append(run_round(arguments, ranks))
            print(ranks, rounds[ranks][-1], flush=True)
    print("ranks  img/s  processor ms/img  share of moving data")
    for ranks, found in rounds.items():
        best = max(each["img_per_s"] for each in found)
        least = min(each["cpu_ms_per_img"] for each in found)
        share = min(each["moving_share"] for each in found)
        print(f"{ranks:5}  {best:5.1f}  {least:16.1f}  {share:20.1%}")


if __name__ == "__main__":
    main()
