"""What the sinks of TensorBoard and MLflow do when something is in their way; asserts it."""

from __future__ import annotations

import logging
import resource
import signal
import sys
from pathlib import Path

import mlflow
from read_runs import of_tensorboard

from horovod._settings.destinations import Destination
from horovod._train.logged.mlflow import MlflowRun
from horovod._train.logged.record import Run
from horovod._train.logged.sink import Guarded
from horovod._train.logged.tensorboard import TensorBoard

RUN, OTHER = Run(1_795_676_176, 1), Run(1_795_676_176, 2)


def two_jobs_of_one_second_are_two_runs(folder: Path) -> None:
    destination = Destination("tensorboard", str(folder))
    for value, run in enumerate((RUN, OTHER)):
        sink = TensorBoard(destination, run)
        sink.write(0, {"loss": value}, 1.0)
        sink.close(failed=False)
    assert of_tensorboard(folder) == {RUN.name: {"loss": {0: 0.0}}, OTHER.name: {"loss": {0: 1.0}}}


def job_goes_on_in_its_run(folder: Path) -> None:
    """As when another process has become rank 0."""
    destination = Destination("tensorboard", str(folder))
    for step in range(2):
        sink = TensorBoard(destination, RUN)
        sink.write(step, {"loss": step}, 1.0)
        sink.close(failed=False)
    assert of_tensorboard(folder) == {RUN.name: {"loss": {0: 0.0, 1: 1.0}}}


def full_disk_leaves_what_can_be_read(folder: Path) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("horovod").addHandler(handler)
    destination = Destination("tensorboard", str(folder))
    sink = Guarded(TensorBoard(destination, RUN), destination)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    for step in range(9):
        sink.write(step, {"loss": step}, 1.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sink.write(9, {"loss": 9}, 1.0)
    sink.close(failed=False)
    first, again, missing = said
    assert "File too large" in first
    assert "from step 9 on" in again
    steps = list(of_tensorboard(folder)[RUN.name]["loss"])
    assert steps[-1] == 9
    assert missing.startswith(f"{10 - len(steps)} records of hvd.log are missing in tensorboard")


def run_of_the_program_is_used_and_goes_on(folder: Path) -> None:
    mlflow.set_tracking_uri(f"file:{folder}")
    with mlflow.start_run() as run:
        sink = MlflowRun(Destination("mlflow", ""), RUN)
        sink.write(3, {"loss": 0.5}, 1.0)
        sink.close(failed=False)
        assert mlflow.active_run().info.status == "RUNNING"
    found = mlflow.get_run(run.info.run_id)
    assert found.data.metrics == {"loss": 0.5}


def run_of_a_job_is_found_again_by_another_rank_0(folder: Path) -> None:
    mlflow.set_tracking_uri(f"file:{folder}")
    for place in ("", f"file:{folder}-2"):
        for step in range(2):
            sink = MlflowRun(Destination("mlflow", place), RUN)
            sink.write(step, {"loss": step}, 1.0)
            sink.close(failed=bool(step))
        client = mlflow.MlflowClient(place or None)
        (run,) = client.search_runs(["0"])
        assert [m.value for m in client.get_metric_history(run.info.run_id, "loss")] == [0.0, 1.0]
        assert run.info.status == "FAILED"
    assert mlflow.active_run() is None


CASES = (
    two_jobs_of_one_second_are_two_runs,
    job_goes_on_in_its_run,
    full_disk_leaves_what_can_be_read,
    run_of_the_program_is_used_and_goes_on,
    run_of_a_job_is_found_again_by_another_rank_0,
)

if __name__ == "__main__":
    for case in CASES:
        case(Path(sys.argv[1], case.__name__))
        print(case.__name__)
