"""What min_num_proc and max_num_proc of estimators and SparkBackend mean, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")
torch = pytest.importorskip("torch")

from horovod.errors import UsageError  # noqa: E402
from horovod.spark.common import backend as backends  # noqa: E402
from horovod.spark.common.backend import SparkBackend  # noqa: E402
from horovod.spark.common.store import Store  # noqa: E402
from horovod.spark.torch import TorchEstimator  # noqa: E402


class Frame:
    """Has columns, and nothing that could be done with them."""

    columns = ("x", "y")


def fit(kind: Any, tmp_path: Any, **params: Any) -> None:
    model = torch.nn.Linear(1, 1)
    kind(
        store=Store.create(str(tmp_path)),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        feature_cols=["x"],
        label_cols=["y"],
        **params,
    ).fit(Frame())


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (
            {"num_proc": 2, "min_num_proc": 3},
            "num_proc=2 is not between min_num_proc=3 and max_num_proc=2",
        ),
        ({"num_proc": 2, "max_num_proc": 1}, "not between min_num_proc=2 and max_num_proc=1"),
        ({"backend": SparkBackend(2), "min_num_proc": 1}, "either backend or min_num_proc"),
        ({"backend": object(), "max_num_proc": 1}, "either backend or max_num_proc: the backend"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_before_anything_starts(
    tmp_path: Any, params: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        fit(TorchEstimator, tmp_path, **params)


@pytest.mark.parametrize("name", ["min_num_proc", "max_num_proc"])
def test_there_is_at_least_one_rank(name: str) -> None:
    with pytest.raises(ValueError, match="0 is below 1"):
        TorchEstimator(**{name: 0})
    with pytest.raises(UsageError, match=f"{name} is 0, but must be an integer of at least 1"):
        SparkBackend(1, **{name: 0})


@pytest.mark.parametrize(
    ("numbers", "limits"),
    [({"min_num_proc": 1}, (1, 2)), ({"max_num_proc": 4}, (2, 4)), ({}, None)],
)
def test_one_of_the_numbers_makes_a_job_elastic(
    monkeypatch: pytest.MonkeyPatch, numbers: dict[str, int], limits: Any
) -> None:
    called: dict[str, Any] = {}

    def note(fn: Any, args: Any, kwargs: Any, **options: Any) -> list[Any]:
        called.update(options)
        return [fn]

    monkeypatch.setattr(backends, "run_elastic" if limits else "run", note)
    backend = SparkBackend(2, {"A": "1"}, verbose=0, **numbers)
    assert backend.run(print, env={"B": "2"}) == [print]
    assert (backend.num_processes(), backend.is_elastic) == (2, limits is not None)
    asked = {"num_proc": 2, "env": {"A": "1", "B": "2"}, "verbose": 0}
    if limits:
        asked |= {"min_num_proc": limits[0], "max_num_proc": limits[1]}
    assert called == asked
