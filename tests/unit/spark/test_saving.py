"""Estimators and models as text, and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")
torch = pytest.importorskip("torch")
from horovod.errors import UsageError  # noqa: E402
from horovod.spark.common.serialization import document_of, stage_of  # noqa: E402
from horovod.spark.torch import TorchEstimator, TorchModel  # noqa: E402
from horovod.spark.torch.model_bytes import OptimizerRecord, model_bytes, model_of  # noqa: E402


def make_estimator(**more: Any) -> Any:
    model = torch.nn.Linear(2, 1)
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.25),
        loss=lambda output, label: (output - label).abs().mean(),
        feature_cols=["x"],
        label_cols=["y"],
        **more,
    )


def test_an_estimator_comes_back() -> None:
    estimator = make_estimator(epochs=7, backend=object(), store=object())
    again = stage_of(TorchEstimator, document_of(estimator))
    assert again.uid == estimator.uid
    assert (again.getEpochs(), again.getFeatureCols()) == (7, ["x"])
    assert torch.equal(again.getModel().weight, estimator.getModel().weight)
    assert float(again.getLoss()(torch.ones(1), torch.zeros(1))) == 1.0
    # What belongs to a session is to be given anew.
    assert again.getStore() is None
    assert again.getBackend() is None


def test_the_optimizer_is_bound_to_the_model_that_came_back() -> None:
    again = stage_of(TorchEstimator, document_of(make_estimator()))
    params = {id(param) for param in again.getModel().parameters()}
    for optimizer in (again.getOrDefault("optimizer"), again.getOptimizer()):
        assert {id(param) for param in optimizer.param_groups[0]["params"]} == params
        assert optimizer.param_groups[0]["lr"] == 0.25
        assert type(optimizer) is torch.optim.Adam


def test_the_document_is_one_line_that_spark_reads() -> None:
    text = document_of(make_estimator())
    assert "\n" not in text
    document = json.loads(text)
    assert document["class"] == "horovod.spark.torch.estimator.TorchEstimator"
    assert {"timestamp", "sparkVersion", "uid", "paramMap", "defaultParamMap"} < set(document)
    assert document["paramMap"].get("store") is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"paramMap": {}, "class": 3}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no saved stage"):
        stage_of(TorchEstimator, text)


def test_another_class_is_refused() -> None:
    with pytest.raises(UsageError, match=r"what was saved is a horovod.*TorchEstimator"):
        stage_of(TorchModel, document_of(make_estimator()))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torch_script_stays_torch_script() -> None:
    script = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 1)))
    again = model_of(model_bytes(script))
    assert isinstance(again, torch.jit.ScriptModule)
    assert torch.equal(again(torch.ones(1, 2)), script(torch.ones(1, 2)))


def test_an_optimizer_keeps_groups_and_state() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    groups = [
        {"params": model[1].parameters(), "lr": 0.5},
        {"params": model[0].parameters(), "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    other = model_of(model_bytes(model))
    bound = OptimizerRecord.of(optimizer, model).bound_to(other)
    assert [group["lr"] for group in bound.param_groups] == [0.5, 0.1]
    assert bound.param_groups[0]["params"][0] is other[1].weight
    momentum = optimizer.state[model[1].weight]["momentum_buffer"]
    held = bound.state[other[1].weight]["momentum_buffer"]
    assert torch.equal(held, momentum)
    assert held is not momentum


def test_an_optimizer_of_another_model_is_refused() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=1.0)
    with pytest.raises(UsageError, match="not those of the model"):
        OptimizerRecord.of(optimizer, torch.nn.Linear(2, 1))


def test_a_model_comes_back() -> None:
    model = TorchModel(
        model=torch.nn.Linear(2, 1),
        history=[{"epoch": 0}],
        feature_columns=["x"],
        label_columns=["y"],
        _metadata={"y": {"shape": 1}},
    )
    again = stage_of(TorchModel, document_of(model))
    assert again.getHistory() == [{"epoch": 0}]
    predict = again._predictor()()
    np.testing.assert_allclose(
        predict([np.ones((3, 2))])[0],
        model.getModel()(torch.ones(3, 2)).detach().numpy(),
    )
