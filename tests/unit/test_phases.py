"""In which phase of a step a stack is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import horovod
from horovod._rank.reports.phases import Frame, PhaseSampler, phase_of, place_of
from horovod._rank.reports.steps import Steps
from horovod._rank.reports.usage import network_bytes, read_usage

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN = str(Path(horovod.__file__).parent)
SITE = "/x/lib/python3.11/site-packages"
TRAIN = Frame("/home/me/train.py", 20, "main")
GENERATOR = Frame("/home/me/train.py", 7, "batches", 1)
STDLIB = Frame(threading.__file__, 1, "wait")


def phase(*stack: Frame, trains_in: set[int] | None = None) -> str:
    return phase_of(stack, set() if trains_in is None else trains_in)


def test_phases_follow_from_libraries_in_the_stack() -> None:
    hook = Frame("/home/me/train.py", 31, "hook")
    backward = Frame(f"{SITE}/torch/autograd/graph.py", 1, "_engine_run_backward")
    loader = Frame(f"{SITE}/torch/utils/data/dataloader.py", 1, "__next__")
    adam = Frame(f"{SITE}/torch/optim/adam.py", 1, "step")
    wrapped = Frame(f"{OWN}/torch/optimizer.py", 1, "step")
    waits = Frame(f"{OWN}/torch/handles.py", 1, "wait")
    assert phase(hook, backward, TRAIN) == "backward"
    assert phase(loader, TRAIN) == "input"
    assert phase(STDLIB, loader, TRAIN) == "input"
    assert phase(adam, wrapped, TRAIN) == "optimizer"
    assert phase(waits, wrapped, TRAIN) == "wait"
    assert phase(STDLIB, waits, TRAIN) == "wait"
    assert phase(Frame(f"{OWN}/data/loader.py", 1, "next"), TRAIN) == "input"
    assert phase(TRAIN) == phase() == "compute"
    assert place_of([STDLIB, backward, hook, TRAIN]) == "train.py:31 in hook"


def test_a_generator_loads_input_unless_training_was_seen_in_it() -> None:
    waits = Frame(f"{OWN}/torch/handles.py", 1, "wait")
    assert phase(GENERATOR, TRAIN) == "input"
    trains_in: set[int] = set()
    assert phase(waits, GENERATOR, TRAIN, trains_in=trains_in) == "wait"
    assert phase(GENERATOR, TRAIN, trains_in=trains_in) == "compute"


def test_the_main_thread_is_seen_where_it_is() -> None:
    sampler = PhaseSampler()

    def rows() -> Iterator[int]:
        thread = threading.Thread(target=sampler.sample)
        thread.start()
        thread.join()
        yield 1

    assert next(rows()) == 1
    assert sampler.samples == {"input": 1}
    (place,) = sampler.take_places().values()
    assert place.startswith("test_phases.py:")
    assert place.endswith(" in rows")
    assert sampler.take_places() == {}


def test_steps_are_counted_with_their_lengths() -> None:
    steps = Steps()
    for _ in range(3):
        steps.count()
    assert (steps.number, len(steps.take_lengths()), steps.take_lengths()) == (3, 2, [])


def test_once_a_program_counts_steps_nothing_else_does() -> None:
    steps = Steps()
    for _ in range(3):
        steps.count()  # of an optimizer, which comes first
        steps.count_by_hand()
    assert (steps.number, len(steps.take_lengths())) == (3, 2)
    alone = Steps()
    alone.count_by_hand()
    alone.count()
    alone.count_by_hand()
    assert (alone.number, len(alone.take_lengths())) == (2, 1)


def test_usage_is_read_from_this_kernel(tmp_path: Path) -> None:
    usage = read_usage()
    assert usage["memory_bytes"] > 1 << 20
    assert usage["threads"] >= 1
    assert usage["cpu_s"] > 0
    assert all(value >= 0 for value in usage.values())
    table = " face |bytes\n    lo: 5 0 0 0 0 0 0 0 5 0\n  eth0: 10 1 0 0 0 0 0 0 7 1\n"
    assert network_bytes(table, str(tmp_path)) == (10, 7)


def test_what_a_bond_or_a_bridge_moves_counts_once(tmp_path: Path) -> None:
    below = {"bond0": ["eth0", "eth1"], "eth0": [], "eth1": [], "docker0": ["veth1"], "veth1": []}
    for name, others in below.items():
        for each in [f"{name}/lower_{other}" for other in others] + [name]:
            (tmp_path / each).mkdir(parents=True, exist_ok=True)
    table = "".join(f"  {name}: 10 0 0 0 0 0 0 0 7 0\n" for name in below)
    assert network_bytes(table, str(tmp_path)) == (
        30,
        21,
    )  # no adapter is known: all that are lowest
    for name in ("eth0", "eth1"):
        (tmp_path / name / "device").mkdir()
    assert network_bytes(table, str(tmp_path)) == (20, 14)
