"""Forecast of what a slow network costs a step, beside what the step then takes.

    python benchmarks/forecast.py
    python benchmarks/forecast.py --hosts 2 --rates 1000 --steps 3

Steps are synthetic: the time of forward and backward pass is slept, as beside a GPU, and gradients
become ready evenly during the backward pass. Ranks run on hosts that are network namespaces of this
machine (root and iproute2 are needed). The forecast is that of ``horovodrun --check --step-ms
--gradient-mb``, from the speed that the job itself has measured when it started.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import emulated
import torch
from replay import Step, run_step

import horovod.torch as hvd
from horovod._rank import job_context
from horovod._rank.reports.network_cost import forecast
from horovod._train.compression import quantizing
from horovod._train.reduce_op import requested_reduction
from horovod.torch import handles, reductions

PIECES = 50
LOCAL_STEPS = 8
STEP_S, GRADIENT_BYTES = 0.2, 20_000_000


def synthetic_step() -> tuple[Step, list[torch.Tensor]]:
    """Return a step of ``STEP_S`` seconds with gradients of ``GRADIENT_BYTES`` in all."""
    forward_s, backward_s = STEP_S / 3, STEP_S * 2 / 3
    ready_s = tuple((number + 1) / PIECES * backward_s for number in range(PIECES))
    count = GRADIENT_BYTES // 4 // PIECES
    gradients = [torch.randn(count) for _ in range(PIECES)]
    return Step(forward_s, ready_s, backward_s, (count,) * PIECES), gradients


def measured_s(way: str, compression: Any, every: int, steps: int) -> float:
    """Return the median length of a step that exchanges its gradients in each ``every``th one."""
    step, gradients = synthetic_step()
    reduction = quantizing(requested_reduction(hvd.Average), compression)

    def submit(index: int) -> int:
        tensors = (gradients[index],)
        call = reductions._allreduce_call(
            "allreduce", f"{way}.{index}", hvd.global_process_set, reduction
        )
        return handles.add(call.group, call.submit(tensors, tensors), lambda _: tensors, tensors)

    lengths = []
    for _ in range(1 + steps):
        hvd.barrier()
        if every == 1:
            lengths.append(run_step(step, submit))
            continue
        took_s = sum(run_step(step, None) for _ in range(every))
        hvd.barrier()
        began_s = time.perf_counter()
        hvd.allreduce_(torch.cat(gradients))
        lengths.append((took_s + time.perf_counter() - began_s) / every)
    return statistics.median(lengths[1:])


def run_rank(args: argparse.Namespace) -> None:
    """Measure on each rank; rank 0 writes the row."""
    hvd.init()
    waits = job_context.current_job().running._waits
    rate = waits._link_bytes_per_s
    told = forecast([args.ranks] * args.of, [rate] * args.of, 1e-4, STEP_S, GRADIENT_BYTES)
    ways = (
        ("float32", told.step_s, hvd.Compression.none, 1),
        ("int8", told.quantized_s, hvd.Compression.int8, 1),
        (f"every {LOCAL_STEPS} steps", told.local_s, hvd.Compression.none, LOCAL_STEPS),
    )
    rows = [
        (name, forecast_s, measured_s(name, compression, every, args.steps))
        for name, forecast_s, compression, every in ways
    ]
    if hvd.rank() == 0:
        Path(args.result).write_text(json.dumps({"rate": rate, "rows": rows}))
    hvd.shutdown()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 1000], help="Mbit/s")
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--steps", type=int, default=3, help="measured, behind another one")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print a row for each setting."""
    args = parse_args()
    if args.result:
        run_rank(args)
        return
    emulated.check_possible()
    print(f"steps of {STEP_S} s, gradients of {GRADIENT_BYTES / 1e6:g} MB", flush=True)
    print("| hosts | Mbit/s, measured | | forecast | measured | ratio |")
    print("|---:|---:|---|---:|---:|---:|")
    for hosts in args.hosts:
        for rate_mbit in args.rates:
            shape = emulated.Shape(hosts, args.ranks, rate_mbit)
            words = ["--steps", str(args.steps), "--ranks", str(args.ranks), "--of", str(hosts)]
            found: dict[str, Any] = emulated.run_on_hosts(__file__, words, shape)
            for name, forecast_s, took_s in found["rows"]:
                rate = f"{rate_mbit:g}, {found['rate'] * 8e-6:.0f}"
                times = f"{forecast_s:.3f} s | {took_s:.3f} s | {forecast_s / took_s:.2f}"
                print(f"| {hosts} | {rate} | {name} | {times} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
