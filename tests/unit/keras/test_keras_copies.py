"""Copies of wrapped optimizers and of models that hold one, of every Keras: they reduce, too."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
from recording_ops import REDUCED, RecordingOps, pretend_two_ranks

import horovod.keras as keras_interface
import horovod.tensorflow.keras as hvd
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def _pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def _cloudpickled(thing: Any) -> Any:
    return pickle.loads(cloudpickle.dumps(thing))


WAYS = (copy.deepcopy, copy.copy, _pickled, _cloudpickled)
KINDS = ("keras", "keras scaled", "tf_keras", "tf_keras scaled", "tf_keras legacy")


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    hvd.init()
    yield pretend_two_ranks(monkeypatch)
    hvd.shutdown()


@pytest.fixture(name="keras", params=KINDS)
def _keras(request: pytest.FixtureRequest) -> Any:
    return request.param.partition(" ")


def _module(keras: Any) -> Any:
    return pytest.importorskip(keras[0])


def _sgd(keras: Any) -> Any:
    module, kind = _module(keras), keras[2]
    if kind == "legacy":
        return module.optimizers.legacy.SGD(1.0)
    plain = module.optimizers.SGD(1.0)
    if kind != "scaled":
        return plain
    if keras[0] == "keras":
        return module.optimizers.LossScaleOptimizer(plain, initial_scale=1.0)
    return module.mixed_precision.LossScaleOptimizer(plain, dynamic=False, initial_scale=1.0)


def _linear(keras: Any, optimizer: Any) -> Any:
    """Two weights of 0; their gradients are -1 while the sum of both is below the target."""
    module = _module(keras)
    layers = [
        module.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name=name)
        for name in ("one", "two")
    ]
    given = module.Input((1,))
    outputs = module.layers.Add()([layer(given) for layer in layers])
    model = module.Model(given, outputs)
    model.compile(optimizer, "mean_absolute_error")
    return model


def _moved(model: Any) -> list[float]:
    """How far each weight goes in a step; by 1 where gradients are not reduced."""
    before = [float(w.numpy()[0, 0]) for w in model.trainable_weights]
    model.fit(np.ones((2, 1)), np.full((2, 1), 1000.0), batch_size=2, verbose=0)
    after = [float(w.numpy()[0, 0]) for w in model.trainable_weights]
    return [b - a for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_a_copied_model_reduces_as_the_original(way: Callable[[Any], Any], keras: Any) -> None:
    optimizer = hvd.DistributedOptimizer(_sgd(keras), compression=hvd.Compression.bf16)
    model = _linear(keras, optimizer)
    assert _moved(model) == [REDUCED, REDUCED]
    copied = way(model)
    assert copied.optimizer.wrapping.settings == optimizer.wrapping.settings
    assert type(copied.optimizer).__module__ == "horovod._keras"
    assert _moved(copied) == [REDUCED, REDUCED]
    assert [w.numpy().item() for w in _pickled(copied).trainable_weights] == [2 * REDUCED] * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_a_copied_optimizer_reduces_as_the_original(way: Callable[[Any], Any], keras: Any) -> None:
    optimizer = keras_interface.DistributedOptimizer(_sgd(keras))
    copied = way(optimizer)
    assert (type(copied).__name__, type(copied)) == (type(optimizer).__name__, type(optimizer))
    assert copied.get_config() == optimizer.get_config()
    assert _moved(_linear(keras, copied)) == [REDUCED, REDUCED]


def test_variables_of_this_rank_and_groups_are_those_of_the_copy(
    keras: Any, two_ranks: RecordingOps
) -> None:
    model = _linear(keras, "sgd")
    one, two = model.trainable_variables
    options: dict[str, Any] = {"groups": [[one]], "scale_local_gradients": False}
    model.compile(hvd.DistributedOptimizer(_sgd(keras), **options), "mean_absolute_error")
    model.optimizer.register_local_var(two)
    assert _moved(model) == [REDUCED, 1.0]
    for copied in (copy.deepcopy(model), _pickled(model)):
        assert _moved(copied) == [REDUCED, 1.0]
    with pytest.raises(UsageError, match="copy the model"):
        pickle.dumps(model.optimizer)


@pytest.mark.parametrize("way", [copy.deepcopy, _pickled])
def test_local_layers_that_are_frozen_stay_local_in_the_copy(way: Callable[[Any], Any]) -> None:
    keras = ("tf_keras", " ", "legacy")  # others refuse variables that come later
    model = _linear(keras, "sgd")
    own = model.get_layer("two")
    optimizer = hvd.PartialDistributedOptimizer(
        _sgd(keras), local_layers=[own], scale_local_gradients=False
    )
    own.trainable = False
    model.compile(optimizer, "mean_absolute_error")
    copied = way(model)
    copied.get_layer("two").trainable = True
    copied.compile(copied.optimizer, "mean_absolute_error")
    assert _moved(copied) == [REDUCED, 1.0]


def test_a_copy_with_local_layers_that_are_not_built_is_refused(keras: Any) -> None:
    module = _module(keras)
    layer = module.layers.Dense(1, name="own")
    model = module.Sequential([layer])
    optimizer = hvd.PartialDistributedOptimizer(_sgd(keras), local_layers=[layer])
    model.compile(optimizer, "mean_absolute_error")
    for each in (model, optimizer):
        with pytest.raises(UsageError, match="'own' is not: build the model first"):
            copy.deepcopy(each)


def test_a_configuration_without_what_is_local_is_refused(keras: Any) -> None:
    model = _linear(keras, "sgd")
    by_layer = hvd.PartialDistributedOptimizer(_sgd(keras), local_layers=model.layers[-1])
    by_variable = hvd.DistributedOptimizer(_sgd(keras))
    type(by_variable).from_config(by_variable.get_config())
    by_variable.register_local_var(model.trainable_variables[0])
    for optimizer in (by_layer, by_variable):
        with pytest.raises(UsageError, match=r"from_config\(\).*stay on their rank"):
            type(optimizer).from_config(optimizer.get_config())


def test_a_copy_between_the_passes_of_a_step_is_refused(keras: Any) -> None:
    optimizer = hvd.DistributedOptimizer(_sgd(keras), backward_passes_per_step=2)
    model = _linear(keras, optimizer)
    assert (_moved(model), _moved(model)) == ([0.0, 0.0], [2 * REDUCED, 2 * REDUCED])
    copied = copy.deepcopy(model)
    assert _moved(copied) == [0.0, 0.0]
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="between two steps"):
            way(copied)
    assert _moved(copied) == [2 * REDUCED, 2 * REDUCED]
    assert _moved(copy.deepcopy(copied)) == [0.0, 0.0]


def test_a_model_without_weights_is_copied(keras: Any) -> None:
    module = _module(keras)
    model = module.Sequential([module.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(_sgd(keras)), "mean_absolute_error")
    copied = copy.deepcopy(model)
    assert type(copied.optimizer).__module__ == "horovod._keras"


def test_models_with_other_optimizers_are_copied_as_ever(keras: Any) -> None:
    hvd.DistributedOptimizer(_sgd(keras))  # which prepares models of this Keras
    model = _linear(keras, _sgd(keras))
    assert _moved(model) == [1.0, 1.0]
    for way in WAYS:
        copied = way(model)
        assert not hasattr(copied.optimizer, "wrapping")
        assert _moved(copied) == [1.0, 1.0]
    assert not hasattr(copy.deepcopy(_module(keras).Sequential()), "wrapping")


def test_the_state_that_a_copy_of_keras_2_lacks_is_named() -> None:
    keras = ("tf_keras", " ", "")
    optimizer = hvd.DistributedOptimizer(_sgd(keras))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(optimizer)
    _moved(_linear(keras, optimizer))
    with pytest.warns(UserWarning, match="copy the model"):
        copy.deepcopy(optimizer)


def test_process_sets_stay_what_they_are() -> None:
    own = hvd.ProcessSet([3, 5, 11])  # which no other test has made
    for way in (copy.deepcopy, copy.copy, _pickled, _cloudpickled):
        assert way(hvd.global_process_set) is hvd.global_process_set
        assert way(own) is own
    elsewhere = pickle.dumps(hvd.ProcessSet([7, 8]))
    assert pickle.loads(elsewhere).ranks == [7, 8]
