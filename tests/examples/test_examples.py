"""Every example and every benchmark runs, on two ranks, in its shortest form."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cluster
import pytest

import horovod

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "pytorch"
KERAS_EXAMPLES = ROOT / "examples" / "keras"
TENSORFLOW_EXAMPLES = ROOT / "examples" / "tensorflow"
BENCHMARKS = ROOT / "benchmarks"
SOURCE = str(Path(horovod.__file__).resolve().parent.parent)
QUICK_IMPORTS = str(ROOT / "tests" / "quick_imports")
# A step of ResNet-101 takes TensorFlow a minute to trace, on two cores for two ranks.
DEADLINE_S = 300.0

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
WHY_NO_HOSTS = cluster.why_not()
needs_hosts = pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)


OLDEST = Path(sys.prefix) / "oldest" / "bin" / "python"
needs_oldest = pytest.mark.skipif(not OLDEST.exists(), reason=f"there is no {OLDEST}")


def run(*words: object, **environment: str) -> str:
    """Returns what a Python command prints on stdout; fails if it fails."""
    ended = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([QUICK_IMPORTS, SOURCE]), **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run_on_two_ranks(*words: object, python: object = sys.executable, **environment: str) -> str:
    return run("-m", "horovod.runner.cli", "-np", 2, python, *words, **environment)


def accuracies(output: str) -> list[float]:
    """What the example's last line says, in percent; once for each rank that printed it."""
    return [float(found) for found in re.findall(r"test accuracy: ([\d.]+)%", output)]


def test_digits_without_launcher(tmp_path: Path) -> None:
    output = run(EXAMPLES / "digits.py", "--smoke", "--checkpoint", tmp_path / "digits.pt")
    assert len(accuracies(output)) == 1


def test_digits_learns(tmp_path: Path) -> None:
    checkpoint = tmp_path / "new folder" / "digits.pt"
    output = run_on_two_ranks(EXAMPLES / "digits.py", "--checkpoint", checkpoint)
    assert len(accuracies(output)) == 1, "one rank speaks for all"
    assert accuracies(output)[0] >= 97.0
    assert checkpoint.stat().st_size > 0


def test_a_stream_of_digits_continues_on_fewer_ranks(tmp_path: Path) -> None:
    words = (EXAMPLES / "digits_shard.py", "--checkpoint", tmp_path / "digits.pt")
    on_three = ("-m", "horovod.runner.cli", "-np", 3, sys.executable)
    first = run(*on_three, *words, "--stop-after", 25)
    (before,) = re.findall(r"(\d+) samples in 25 steps on 3 ranks", first)
    second = run_on_two_ranks(*words)
    assert f"continuing in epoch 1 after {before} samples" in second
    # 1797 digits, without every tenth one, in 8 epochs.
    assert "12936 samples in" in second
    (accuracy,) = re.findall(r"test accuracy: ([\d.]+)%", second)
    assert float(accuracy) >= 90.0


@needs_tensorflow
def test_digits_in_a_session_learns_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    program = TENSORFLOW_EXAMPLES / "digits_session.py"
    folder = tmp_path / "new folder" / "digits"
    output = run_on_two_ranks(program, "--checkpoint", folder)
    assert len(accuracies(output)) == 1, "one rank speaks for all"
    assert accuracies(output)[0] >= 97.0
    assert (folder / "checkpoint").stat().st_size > 0
    last = int(re.findall(r"epoch +(\d+)", output)[-1])
    output = run_on_two_ranks(program, "--epochs", last + 1, "--checkpoint", folder)
    assert re.findall(r"epoch +(\d+)", output) == [str(last + 1)]


@pytest.mark.parametrize("options", [["--model", "vgg"], ["--model", "mlp", "--fp16-allreduce"]])
def test_synthetic_benchmark(options: list[str]) -> None:
    output = run_on_two_ranks(EXAMPLES / "synthetic_benchmark.py", "--smoke", *options)
    total = re.findall(r"total img/s on 2 rank\(s\): ([\d.]+) \+- ([\d.]+)", output)
    assert len(total) == 1, "one rank speaks for all"
    assert float(total[0][0]) > 0


@needs_tensorflow
@pytest.mark.parametrize(
    ("program", "checkpoint"),
    [
        (TENSORFLOW_EXAMPLES / "digits_tape.py", "digits.weights.h5"),
        (KERAS_EXAMPLES / "digits_fit.py", "digits.keras"),
    ],
    ids=["tape", "fit"],
)
def test_digits_in_tensorflow_learns(program: Path, checkpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / checkpoint
    output = run_on_two_ranks(program, "--checkpoint", path)
    assert len(accuracies(output)) == 1, "one rank speaks for all"
    assert accuracies(output)[0] >= 97.0
    assert path.stat().st_size > 0


@needs_tensorflow
@pytest.mark.parametrize("program", ["keras/digits_fit.py", "tensorflow/digits_tape.py"])
def test_examples_run_on_tf_keras(program: str, tmp_path: Path) -> None:
    pytest.importorskip("tf_keras")
    path = tmp_path / "digits.weights.h5"
    words = (EXAMPLES.parent / program, "--smoke", "--checkpoint", path)
    output = run_on_two_ranks(*words, TF_USE_LEGACY_KERAS="1")
    assert len(accuracies(output)) == 1
    assert path.stat().st_size > 0


@needs_oldest
def test_an_example_runs_on_the_oldest_tensorflow(tmp_path: Path) -> None:
    # Horovod alone: beside it lie the packages of a newer TensorFlow.
    (tmp_path / "horovod").symlink_to(Path(horovod.__file__).parent)
    path = tmp_path / "digits.keras"
    words = (KERAS_EXAMPLES / "digits_fit.py", "--smoke", "--checkpoint", path)
    output = run_on_two_ranks(*words, python=OLDEST, PYTHONPATH=str(tmp_path))
    assert len(accuracies(output)) == 1
    assert path.stat().st_size > 0


@needs_tensorflow
def test_digits_in_keras_without_launcher(tmp_path: Path) -> None:
    checkpoint = tmp_path / "digits.keras"
    output = run(KERAS_EXAMPLES / "digits_fit.py", "--smoke", "--checkpoint", checkpoint)
    assert len(accuracies(output)) == 1


@needs_tensorflow
@pytest.mark.parametrize("model", ["VGG16"])  # the others trace for minutes
def test_synthetic_benchmark_of_keras(model: str) -> None:
    options = ("--smoke", "--model", model, "--fp16-allreduce")
    output = run_on_two_ranks(KERAS_EXAMPLES / "synthetic_benchmark.py", *options)
    total = re.findall(r"total img/s on 2 rank\(s\): ([\d.]+) \+- ([\d.]+)", output)
    assert len(total) == 1, "one rank speaks for all"
    assert float(total[0][0]) > 0


def test_allreduce_benchmark(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    output = run(
        BENCHMARKS / "allreduce.py",
        *("--np", 2, "--max-bytes", 4096, "--seconds-per-size", 0.05),
        *("--libraries", "horovod,gloo", "--json", report),
    )
    assert "Horovod vs gloo" in output
    (measured,) = json.loads(report.read_text())["runs"]
    assert [size["bytes"] for size in measured["sizes"]] == [4, 16, 64, 256, 1024, 4096]
    assert all(size["speedup"]["gloo"] > 0 for size in measured["sizes"])


def test_allreduce_benchmark_in_a_job_that_runs() -> None:
    options = ("--max-bytes", 16, "--seconds-per-size", 0.05, "--libraries", "horovod,gloo")
    output = run_on_two_ranks(BENCHMARKS / "allreduce.py", *options)
    assert output.count("Horovod vs gloo") == 1, "one rank speaks for all"


def test_allreduce_benchmark_against_mpich() -> None:
    mpich = Path(sys.prefix) / "mpich" / "bin" / "mpiexec"
    if not mpich.exists():
        pytest.skip(f"there is no {mpich}; make bench installs it")
    options = ("--np", 2, "--max-bytes", 16, "--seconds-per-size", 0.05)
    output = run(BENCHMARKS / "allreduce.py", *options, "--libraries", "horovod,mpich")
    assert "Horovod vs MPICH" in output


def test_many_tensors_benchmark(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    output = run(
        BENCHMARKS / "many_tensors.py",
        *("--np", 2, "--max-bytes", 500 * 4096, "--seconds-per-workload", 0.05),
        *("--libraries", "horovod,gloo", "--json", report),
    )
    assert "Horovod, asynchronous" in output
    (measured,) = json.loads(report.read_text())["runs"]
    assert [row["tensors"] for row in measured["workloads"]] == [500]
    others = {"horovod-views", "gloo", "gloo-buckets"}
    assert set(measured["workloads"][0]["speedup"]) == others


def test_shared_memory_benchmark(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    output = run(
        BENCHMARKS / "shared_memory.py",
        *("--np", 2, "--min-bytes", 4096, "--max-bytes", 1 << 20),
        *("--seconds-per-size", 0.05, "--json", report),
    )
    assert "C loop, in shared memory" in output
    (measured,) = json.loads(report.read_text())["runs"]
    assert [row["bytes"] for row in measured["sizes"]] == [4096 * 4**i for i in range(5)]
    assert all(row["speedup"]["shared"] > 0 for row in measured["sizes"])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_training_step_benchmark(num_ranks: int, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    output = run(
        BENCHMARKS / "training_step.py",
        *("--np", num_ranks, "--rounds", 1, "--seconds-per-workload", 0.05, "--batch", 2),
        *("--mlp-width", 16, "--cnn-width", 2, "--image", 8, "--ways", "alone", "horovod"),
        *("--json", report),
    )
    assert "speed of no communication" in output
    (measured,) = json.loads(report.read_text())["runs"]
    assert [row["workload"] for row in measured["workloads"]] == ["MLP", "CNN"]
    assert all(row["speedup"]["horovod"] > 0 for row in measured["workloads"])


@needs_tensorflow
def test_keras_step_benchmark(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    output = run(
        BENCHMARKS / "keras_step.py",
        *("--rounds", 1, "--seconds-per-workload", 0.05, "--batch", 2, "--widths", 16, 24),
        *("--ways", "keras-alone", "keras", "--json", report),
    )
    assert "added by Horovod" in output
    (measured,) = json.loads(report.read_text())["runs"]
    assert [row["width"] for row in measured["workloads"]] == [16, 24]
    assert all(set(row["added_us"]) == {"keras"} for row in measured["workloads"])


def test_timeline_benchmark() -> None:
    options = ("--np", 2, "--seconds-per-run", 0.5, "--width", 32, "--layers", 3)
    output = run(BENCHMARKS / "timeline.py", *options)
    assert re.search(r"[+-]\d+\.\d\d %", output)


@needs_hosts
def test_benchmark_between_hosts(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    output = run(
        BENCHMARKS / "between_hosts.py",
        *("--hosts", 2, "--ranks-per-host", 1, "--bytes", 4, 65536, "--seconds-per-size", 0.05),
        *("--libraries", "horovod,gloo", "--json", report),
    )
    assert "of the line" in output
    (measured,) = json.loads(report.read_text())["runs"]
    assert [size["bytes"] for size in measured["sizes"]] == [4, 65536]
    assert 0 < measured["wire_mbit_per_s"] < 1000


@needs_hosts
def test_replay(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    output = run(
        BENCHMARKS / "replay.py",
        *("--hosts", 2, "--models", "inception_v3", "--steps", 1, "--shrink", 50),
        *("--json", report),
    )
    assert "efficiency" in output
    (measured,) = json.loads(report.read_text())["runs"][0]["models"]
    assert measured["gradients"] == 284
    # 451 ms, 25 times slower as the network is, and 50 times less of everything.
    assert measured["alone_s"] == pytest.approx(0.451 * 25 / 50, rel=0.5)
    # A single step of each: another program may delay the one alone, as far as above.
    assert 0 < measured["efficiency"] < 1.6


def test_startup(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--rounds", 1, "--launchers", "plain,horovodrun", "--json", report)
    output = run(BENCHMARKS / "startup.py", *words)
    assert "horovodrun above plain, processor time of all: median" in output
    (measured,) = json.loads(report.read_text())
    marks = measured["horovodrun"]
    phases = ("python", "import torch", "import horovod.torch", "init", "allreduce", "exit")
    assert sorted(phases, key=lambda mark: marks[mark]) == list(phases)
    assert marks["cpu"] > measured["plain"]["cpu"] > 0


def test_the_list_of_gradients_is_that_of_resnet50() -> None:
    """161 tensors and 25,557,032 numbers are what the architecture is known for."""
    sum_up = (
        "import math, many_tensors as m; n = [math.prod(s) for s in m.resnet50_shapes()];"
        "print(len(n), sum(n))"
    )
    folder = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r});"
    assert run("-c", folder + sum_up).split() == ["161", "25557032"]


@pytest.mark.parametrize("name", ["learning_rates", "search"])
def test_job_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "search":
        pytest.importorskip("optuna")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run("-m", "horovod.runner.cli", "-f", f"examples/jobs/{name}.yml", PATH=path)
    words = ["experiment", "status", "1", "-f", f"examples/jobs/{name}.yml"]
    rows = run("-m", "horovod.runner.cli", *words).splitlines()[1:]
    best = [row for row in rows if row.startswith("the best run is 1.")]
    assert len(best) == (name == "search")
    for row in rows[: len(rows) - len(best)]:
        assert row.split()[1] in ("finished", "pruned")
        assert "accuracy=" in row
