"""Keras on each backend trains on two ranks as one process does with all data."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parents[1] / "examples" / "keras"
# tests/dist/test_keras_training.py has the others on TensorFlow.
ON_TENSORFLOW = ("plain", "own step")
# On JAX, tracing takes long, and these trace little that the others do not.
NOT_ON_JAX = (
    "contract", "sum", "predivided", "two groups", "own step, in place", "accumulation of keras",
    "averaged weights", "16 bits",
)  # fmt: skip

# What of the contract of all adapters Keras has: see keras_api.py.
CONTRACT = (
    "allreduce_of_all_dtypes_and_shapes",
    "allreduce_averages",
    "average_of_integers_truncates_towards_zero",
    "allreduce_takes_minimum_maximum_product",
    "allreduce_scales_before_and_after",
    "allreduce_gives_the_same_bits_on_all_ranks",
    "large_tensors_are_reduced_and_gathered",
    "allgather_joins_unequal_parts",
    "broadcast_copies_from_every_root",
    "reducescatter_leaves_own_rows",
    "the_frameworks_own_product_and_quotient_are_the_same",
    "averages_are_quotients_of_the_dtype",
    "averages_of_integers_are_exact_however_large",
    "integers_are_scaled_in_float64_and_truncated",
    "gradients_of_random_trees_equal_one_process",
)

LAUNCHER = (sys.executable, "-m", "horovod.runner.cli")
ELASTIC = (*LAUNCHER, "-np", 3, "--min-np", 2, "--max-np", 3, "-H", "localhost:3")

Run = Any


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each backend leaves the weights that it has trained."""
    return tmp_path_factory.mktemp("trained")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_ranks_train_as_one_process(backend: str, trained: Path, run_ranks: Run) -> None:
    recipes = ON_TENSORFLOW if backend == "tensorflow" else ()
    leave_out = ";".join(NOT_ON_JAX) if backend == "jax" else ""
    job = run_ranks(
        2, "keras_fit_rank.py", trained / f"{backend}.json", *recipes,
        KERAS_BACKEND=backend, HVD_TEST_LEAVE_OUT=leave_out,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count(f" recipes agree on {backend}") == 2
    if backend != "jax":
        assert_contract(job)


@pytest.mark.slow  # a job of its own, as the other one compiles for minutes on a busy machine
def test_the_contract_holds_on_jax(tmp_path: Path, run_ranks: Run) -> None:
    job = run_ranks(2, "keras_fit_rank.py", tmp_path / "none", "contract", KERAS_BACKEND="jax")
    assert job.returncode == 0, job.stdout + job.stderr
    assert_contract(job)


def assert_contract(job: Any) -> None:
    """Check that both ranks have passed the checks of the contract that Keras has."""
    for rank in range(2):
        said = said_by(job, rank)
        assert [line.split()[1] for line in said if line.startswith("contract: ")] == [*CONTRACT]


@pytest.mark.slow  # as those that train, without which there is nothing to compare
def test_backends_train_alike(trained: Path) -> None:
    found = {file.stem: json.loads(file.read_text()) for file in sorted(trained.glob("*.json"))}
    assert set(found) == {"torch", "jax", "tensorflow"}
    for backend, names in (("torch", ("plain", "adam", "clipped")), ("tensorflow", ON_TENSORFLOW)):
        for name in names:
            for mine, theirs in zip(found[backend][name], found["jax"][name], strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-6, err_msg=f"{backend}: {name}")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_ranks_with_parts_of_a_state_train_as_one_process(
    backend: str, tmp_path: Path, run_ranks: Run
) -> None:
    job = run_ranks(2, "keras_shares_rank.py", tmp_path, KERAS_BACKEND=backend)
    assert job.returncode == 0, job.stdout + job.stderr
    for rank in range(2):
        assert said_by(job, rank)[-1] == "what_shares_cannot_do_is_refused", job.stdout


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_local_steps_are_those_of_one_process(backend: str, tmp_path: Path, run_ranks: Run) -> None:
    job = run_ranks(2, "keras_local_steps_rank.py", tmp_path, KERAS_BACKEND=backend)
    assert job.returncode == 0, job.stdout + job.stderr
    for rank in range(2):
        assert said_by(job, rank)[-1] == "what_local_steps_cannot_do_is_refused", job.stdout


@pytest.mark.slow
def test_keras_finds_the_ranks_by_itself(run_ranks: Run) -> None:
    job = run_ranks(2, "keras_distribution_rank.py", KERAS_BACKEND="jax")
    assert job.returncode == 0, job.stdout + job.stderr
    for rank in range(2):
        assert f"process {rank}/2" in said_by(job, rank)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "kind"), [("torch", "whole"), ("jax", "shares")])
def test_the_others_go_on_when_a_rank_dies(
    backend: str, kind: str, tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    job = run_python(
        FOLDER / "keras_elastic_rank.py", tmp_path / "died", kind,
        launcher=ELASTIC, KERAS_BACKEND=backend,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    done = [line for rank in range(3) for line in said_by(job, rank)]
    assert done == ["done: 4 epochs, 24 steps on 2 ranks"] * 2, job.stdout + job.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "place"), [("torch", "end"), ("torch", "begin"), ("jax", "begin")]
)
def test_fit_itself_goes_on_when_a_rank_dies(
    backend: str, place: str, tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    job = run_python(
        FOLDER / "keras_training_rank.py", tmp_path / "died", place,
        launcher=ELASTIC, KERAS_BACKEND=backend,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    done = [line for rank in range(3) for line in said_by(job, rank)]
    assert done == ["done: 10 steps on 2 ranks"] * 2, job.stdout + job.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "place"), [("torch", "end"), ("torch", "begin"), ("jax", "begin")]
)
def test_fit_keeps_the_global_batch_when_a_rank_dies(
    backend: str, place: str, tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    job = run_python(
        FOLDER / "keras_training_rank.py", tmp_path / "died", place, 9,
        launcher=ELASTIC, KERAS_BACKEND=backend,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    done = [line for rank in range(3) for line in said_by(job, rank)]
    assert done == ["done: 9 steps on 2 ranks"] * 2, job.stdout + job.stderr
    assert "3 to 2 ranks: the global batch stays 9 samples: 2 ranks take 5 and 4, in 2 passes" in (
        job.stdout + job.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_what_is_rounded_off_comes_with_the_next_step(
    backend: str, run_python: Callable[..., Any]
) -> None:
    job = run_python(FOLDER / "keras_errors_rank.py", KERAS_BACKEND=backend)
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.splitlines()[-1] == "errors come with the next step"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_example_learns(backend: str, tmp_path: Path, run_python: Callable[..., Any]) -> None:
    job = run_python(
        EXAMPLES / "digits_fit.py", "--epochs", 3, "--checkpoint", tmp_path / "digits.keras",
        launcher=(*LAUNCHER, "-np", 2), KERAS_BACKEND=backend,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    (accuracy,) = re.findall(r"test accuracy: ([\d.]+)%", job.stdout)  # one rank speaks for all
    assert float(accuracy) >= 75
