"""LocalSGD and DiLoCo of Keras beside the same algorithm computed for all ranks in one process.

A case is a function ``case(rank, size, folder)`` that runs on every rank at the same time, in a
folder that all of them share.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import horovod.keras as hvd
from horovod._keras.local_steps.optimizer import _warn_of_steps_alone
from horovod._rank import context
from horovod._train.object_functions import allgather_object
from horovod.errors import ReplicasDivergedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BATCH = 4
TOLERANCE = 2e-5


def _model(seed: int = 1) -> Any:
    generator = np.random.default_rng(seed)
    layers = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((3,)), *layers])
    for weight in model.weights:
        weight.assign(generator.standard_normal(weight.shape))
    return model


def _data(rank: int, steps: int, first: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(rank)
    rows = (first + steps) * BATCH
    x = generator.standard_normal((rows, 3)).astype(np.float32)[first * BATCH :]
    return x, generator.standard_normal((rows, 2)).astype(np.float32)[first * BATCH :]


def _sgd() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.8), 0.9)


def _fit(model: Any, data: tuple[Any, Any], **options: Any) -> Any:
    return model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0, **options)


def _trained(optimizer: Any, rank: int, steps: int, **options: Any) -> Any:
    model = _model()
    model.compile(optimizer, "mse")
    _fit(model, _data(rank, steps), **options)
    return model


def _values(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables]


def _bits(variables: Any) -> list[bytes]:
    return [value.tobytes() for value in _values(variables)]


def _reference(
    size: int, rank: int, steps: int, firsts: list[int], every: int, is_outer: bool
) -> list[Any]:
    """The weights of a rank after some steps: what the papers say, in one process.

    Args:
        size: how many ranks.
        rank: whose weights.
        steps: how many each takes.
        firsts: for each weight, the step after which it is exchanged first.
        every: steps from then on.
        is_outer: whether there is the outer optimizer of the paper.
    """
    models = [_model() for _ in range(size)]
    for model in models:
        model.compile(_sgd(), "mse")
    data = [_data(each, steps) for each in range(size)]
    outer = _values(models[0].trainable_variables)
    momenta = [np.zeros_like(value) for value in outer]
    for step in range(1, steps + 1):
        rows = slice((step - 1) * BATCH, step * BATCH)
        for model, (x, y) in zip(models, data, strict=True):
            model.train_on_batch(x[rows], y[rows])
        for i, first in enumerate(firsts):
            if (step - first) % every:
                continue
            weights = [model.trainable_variables[i] for model in models]
            change = np.mean([value - outer[i] for value in _values(weights)], axis=0)
            if is_outer:
                momenta[i] = 0.9 * momenta[i] - change
                outer[i] = outer[i] - 0.7 * (0.9 * momenta[i] - change)
            else:
                outer[i] = outer[i] + change
            for weight in weights:
                weight.assign(outer[i])
    return _values(models[rank].trainable_variables)


def _expect_same(got: list[Any], expected: list[Any]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def _expect(kind: type[Exception], words: str, function: Callable[[], Any]) -> None:
    caught: Exception | None = None
    try:
        function()
    except kind as error:
        caught = error
    assert caught is not None, f"no {kind.__name__}"
    assert words in str(caught), caught


def _expect_same_everywhere(variables: Any) -> None:
    everyones = allgather_object(_bits(variables))
    assert all(theirs == everyones[0] for theirs in everyones)


def fit_takes_the_steps_of_the_papers(rank: int, size: int, folder: Path) -> None:
    model = _trained(hvd.LocalSGD(_sgd(), every=3), rank, 8)
    _expect_same(_values(model.trainable_variables), _reference(size, rank, 8, [3] * 4, 3, False))
    # Of 12, 4, 8 and 2 numbers: two fragments, that begin after steps 2 and 4.
    model = _trained(hvd.DiLoCo(_sgd(), every=4, fragments=2), rank, 7)
    expected = _reference(size, rank, 7, [2, 4, 4, 4], 4, True)
    _expect_same(_values(model.trainable_variables), expected)
    _expect_same_everywhere(model.optimizer.outer_variables)


def steps_of_ones_own_are_the_same(rank: int, size: int, folder: Path) -> None:
    model = _model()
    optimizer = hvd.DiLoCo(keras.optimizers.SGD(0.5), every=2)
    start = _values(model.trainable_variables)
    for _ in range(2):
        grads = [keras.ops.ones(v.shape) * (rank + 1) for v in model.trainable_variables]
        optimizer.apply(grads, model.trainable_variables)
    change = -(size + 1) / 2  # each rank has changed by its rank + 1
    expected = [value + 0.7 * 1.9 * change for value in start]
    _expect_same(_values(model.trainable_variables), expected)
    optimizer.synchronize()  # nothing to do
    _expect_same(_values(model.trainable_variables), expected)


def steps_on_a_gpu_are_counted_on_the_cpu(rank: int, size: int, folder: Path) -> None:
    """Whether an exchange is due is known then without waiting for the GPU."""
    if keras.backend.backend() != "torch":
        return
    optimizer = hvd.LocalSGD(_sgd(), every=2)
    with keras.device("meta"):  # any device but the CPU
        optimizer.build(_model().trainable_variables)
        optimizer._reducer.begin_again()
    devices = {v.name: v.value.device.type for v in optimizer._reducer.variables}
    assert set(devices.values()) == {"cpu", "meta"}
    counters = {name for name, device in devices.items() if device == "cpu"}
    assert counters == {"has_begun", "num_steps", "num_alone"}


def compiled_calls_take_the_same_steps(rank: int, size: int, folder: Path) -> None:
    """Of several steps, where Keras can, else in a step that PyTorch compiles."""
    is_torch = keras.backend.backend() == "torch"
    options = {"jit_compile": True} if is_torch else {"steps_per_execution": 3}
    model = _model()
    model.compile(hvd.DiLoCo(_sgd(), every=4, fragments=2), "mse", **options)
    if is_torch:
        import torch

        plain, torch.compile = torch.compile, partial(torch.compile, backend="eager")
        try:  # all but the code that it would generate
            _fit(model, _data(rank, 7))
        finally:
            torch.compile = plain
    else:
        _fit(model, _data(rank, 7))
    expected = _reference(size, rank, 7, [2, 4, 4, 4], 4, True)
    _expect_same(_values(model.trainable_variables), expected)
    _expect_same_everywhere(model.optimizer.outer_variables)


def joined_ranks_have_changed_nothing(rank: int, size: int, folder: Path) -> None:
    if keras.backend.backend() != "tensorflow":
        return  # horovod.keras has no join, unlike horovod.tensorflow
    import tensorflow as tf

    import horovod.tensorflow as hvd_tf

    model = _model()
    optimizer = hvd_tf.LocalSGD(keras.optimizers.SGD(1.0), every=2)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step() -> None:
        optimizer.apply_gradients(
            (tf.ones(v.shape) * (rank + 1), v) for v in model.trainable_variables
        )

    start = _values(model.trainable_variables)
    for _ in range(2 if rank else 4):
        step()
    hvd_tf.join()
    middle = -2 * (size + 1) / 2
    expected = [value + middle - (0 if rank else 2 / size) for value in start]
    _expect_same([variable.numpy() for variable in variables], expected)


def the_callback_leaves_all_ranks_equal(rank: int, size: int, folder: Path) -> None:
    losses: list[float] = []
    told = keras.callbacks.LambdaCallback(
        on_test_end=lambda logs: losses.append(logs["loss"]),
        on_epoch_end=lambda epoch, logs: _expect_same_everywhere(model.trainable_variables),
    )
    model = _model()
    model.compile(hvd.LocalSGD(_sgd(), every=3), "mse")
    _fit(
        model, _data(rank, 5), epochs=2, validation_data=_data(99, 2),
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.LocalStepsCallback(), told,
        ],
    )  # fmt: skip
    assert len(losses) == 2
    everyones = allgather_object(losses)
    assert all(theirs == everyones[0] for theirs in everyones)
    plain = _model()
    plain.compile(_sgd(), "mse")
    callback = hvd.callbacks.LocalStepsCallback()
    _expect(
        UsageError,
        "nothing to bring together",
        lambda: _fit(plain, _data(0, 1), callbacks=[callback]),
    )


def a_resumed_run_has_the_same_bits(rank: int, size: int, folder: Path) -> None:
    model = _trained(hvd.DiLoCo(_sgd(), every=3), rank, 4)
    path = folder / f"rank{rank}.keras"
    model.save(path)
    np.savez(folder / f"rank{rank}.npz", **model.optimizer.get_outer_state())
    loaded = keras.models.load_model(path)
    optimizer = hvd.DiLoCo(loaded.optimizer, every=3)
    optimizer.set_outer_state(np.load(folder / f"rank{rank}.npz"))
    loaded.compile(optimizer, "mse")
    for each in (model, loaded):
        _fit(each, _data(rank, 6, first=4))
    assert _bits(loaded.trainable_variables) == _bits(model.trainable_variables)
    assert _bits(loaded.optimizer.variables) == _bits(model.optimizer.variables)
    other = hvd.LocalSGD(_sgd(), every=3)
    other.build(model.trainable_variables)
    state = model.optimizer.get_outer_state()
    _expect(UsageError, "do not fit this optimizer", lambda: other.set_outer_state(state))


def ranks_begin_with_the_same_variables(rank: int, size: int, folder: Path) -> None:
    for runs_eagerly in (True, False):
        model = _model()
        model.weights[2].assign(model.weights[2].value + 1e-3 * rank)
        model.compile(hvd.LocalSGD(_sgd(), every=2), "mse", run_eagerly=runs_eagerly)
        words = (
            "before the first local step, 1 tensors are not the same on all ranks; those that "
            "differ from the majority: '2.kernel' on rank 1"
        )
        _expect(Exception, words, lambda model=model: _fit(model, _data(rank, 1)))


def outer_variables_are_compared(rank: int, size: int, folder: Path) -> None:
    original = context.settings
    context.settings = lambda: dataclasses.replace(original(), check_in_sync_steps=2)
    try:
        variables = _model().trainable_variables
        optimizer = hvd.LocalSGD(keras.optimizers.SGD(0.1), every=1)

        def step() -> None:
            optimizer.apply([keras.ops.ones(v.shape) for v in variables], variables)

        for _ in range(3):
            step()
        drifting = optimizer.outer_variables[1]
        drifting.assign(drifting.value + 1e-3 * rank)
        _expect(ReplicasDivergedError, "'1.bias' on rank 1", step)  # in the second comparison
    finally:
        context.settings = original


def newcomers_get_the_outer_state_of_the_root(rank: int, size: int, folder: Path) -> None:
    model = _model(seed=1 + rank)
    if rank == 0:  # the others have just come
        model = _model()
    model.compile(hvd.DiLoCo(_sgd(), every=2, process_set=_alone(rank)), "mse")
    if rank == 0:
        _fit(model, _data(rank, 5))
    state = hvd.elastic.KerasState(model, epoch=0)
    state.sync()
    _expect_same_everywhere([*model.weights, *model.optimizer.variables])
    assert model.optimizer.get_outer_state()["num_steps"] == 5


_sets: list[Any] = []


def _alone(rank: int) -> Any:
    """The process set of this rank alone; all ranks must ask for theirs at the same time."""
    if not _sets:
        _sets.extend(hvd.add_process_set([each]) for each in range(hvd.size()))
    return _sets[rank]


def few_operations_are_submitted(rank: int, size: int, folder: Path) -> None:
    engine = context.global_group().engine
    before = engine.statistics()["submitted"]
    _trained(hvd.LocalSGD(_sgd(), every=16), rank, 32)
    # Each has at most as many bytes as the gradients, of which DistributedOptimizer sends 32.
    assert engine.statistics()["submitted"] - before == 3


def halves_have_outer_variables_of_float32(rank: int, size: int, folder: Path) -> None:
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = _model()
        optimizer = hvd.LocalSGD(
            keras.optimizers.SGD(0.1), every=2, compression=hvd.Compression.bf16
        )
        model.compile(optimizer, "mse")
        _fit(model, _data(rank, 4))
    finally:
        keras.config.set_dtype_policy("float32")
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in optimizer.outer_variables}
    assert dtypes == {"float32"}
    everyones = allgather_object(
        [keras.ops.convert_to_numpy(v.value).tobytes() for v in model.weights]
    )
    assert all(theirs == everyones[0] for theirs in everyones)


def the_end_tells_of_steps_that_were_not_averaged(rank: int, size: int, folder: Path) -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("horovod").addHandler(handler)
    try:
        for steps in (4, 6):
            model = _trained(hvd.LocalSGD(_sgd(), every=3), rank, steps)
            _warn_of_steps_alone(model.optimizer._reducer)
    finally:
        logging.getLogger("horovod").removeHandler(handler)
    (text,) = [each for each in told if "were not averaged" in each]
    assert "the last 1 steps of the optimizer made at" in text
    assert "keras_local_steps.py" in text


def what_local_steps_cannot_do_is_refused(rank: int, size: int, folder: Path) -> None:
    _expect(UsageError, "every=0", lambda: hvd.LocalSGD(_sgd(), every=0))
    _expect(UsageError, "delay=1: exchanges", lambda: hvd.DiLoCo(_sgd(), every=2, delay=1))
    wrapped = hvd.LocalSGD(_sgd(), every=2)
    _expect(UsageError, "this is a LocalSGD", lambda: hvd.DiLoCo(wrapped, every=2))
    _expect(UsageError, "is a LocalSGD already", lambda: hvd.DistributedOptimizer(wrapped))
    reducing = hvd.DistributedOptimizer(_sgd())
    _expect(UsageError, "a DistributedOptimizer", lambda: hvd.LocalSGD(reducing, every=2))
    scaling = keras.optimizers.LossScaleOptimizer(_sgd())
    _expect(UsageError, "mixed_bfloat16", lambda: hvd.LocalSGD(scaling, every=2))
    averaged = keras.optimizers.SGD(use_ema=True)
    _expect(UsageError, "use_ema", lambda: hvd.LocalSGD(averaged, every=2))
    _expect(UsageError, "is no optimizer", lambda: hvd.LocalSGD("sgd", every=2))
    _expect(UsageError, "outer=", lambda: hvd.DiLoCo(_sgd(), every=2, outer="sgd"))
    _expect(UsageError, "cannot be copied", lambda: copy.deepcopy(wrapped))
    _expect(UsageError, "no variables yet", wrapped.synchronize)
    few = hvd.DiLoCo(_sgd(), every=9, fragments=9)
    _expect(UsageError, "trains 4 parameters", lambda: few.build(_model().trainable_variables))
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = _model()
        _expect(UsageError, "auto_scale_loss", lambda: model.compile(wrapped, "mse"))
    finally:
        keras.config.set_dtype_policy("float32")


CASES: list[Callable[[int, int, Path], None]] = [
    fit_takes_the_steps_of_the_papers,
    steps_of_ones_own_are_the_same,
    steps_on_a_gpu_are_counted_on_the_cpu,
    compiled_calls_take_the_same_steps,
    joined_ranks_have_changed_nothing,
    the_callback_leaves_all_ranks_equal,
    a_resumed_run_has_the_same_bits,
    ranks_begin_with_the_same_variables,
    outer_variables_are_compared,
    newcomers_get_the_outer_state_of_the_root,
    few_operations_are_submitted,
    halves_have_outer_variables_of_float32,
    the_end_tells_of_steps_that_were_not_averaged,
    what_local_steps_cannot_do_is_refused,
]
