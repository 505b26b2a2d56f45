"""What two ranks find true of horovod.keras on JAX and PyTorch, beside trainings."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
from keras_recipes import Recipe, assert_equal_on_all_ranks, make_model, rows_of

import horovod.keras as hvd
from horovod.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    Model = keras.Model


def compiled_model(seed: int = 0, **wrapping: Any) -> Model:
    model = make_model(seed, Recipe())
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer, **wrapping), "mse")
    return model


def fit(model: Model, *callbacks: Any, epochs: int = 1) -> Any:
    words, targets = rows_of([hvd.rank()], 0, 3)
    return model.fit(
        words, targets, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks
    ).history


def values(folder: Path) -> None:
    mean = np.asarray(hvd.allreduce(np.float64(hvd.rank())))
    assert float(mean) == 0.5
    assert float(np.asarray(hvd.allreduce(np.float64(3), op=hvd.Sum))) == 6.0
    assert np.asarray(hvd.allgather(np.array([hvd.rank()]))).tolist() == [0, 1]
    assert np.asarray(hvd.broadcast(np.array([hvd.rank()]), 1)).tolist() == [1]
    rows = np.asarray(hvd.reducescatter(np.arange(4.0), op=hvd.Sum))
    assert rows.tolist() == [[0.0, 2.0], [4.0, 6.0]][hvd.rank()]


def variables_of_the_root(folder: Path) -> None:
    model = make_model(hvd.rank(), Recipe())
    hvd.broadcast_variables(model.weights, root_rank=1)
    assert_equal_on_all_ranks("broadcast", model.get_weights())
    np.testing.assert_array_equal(model.get_weights()[1], make_model(1, Recipe()).get_weights()[1])
    with pytest.raises(MismatchError, match="the same parameters"):
        hvd.broadcast_variables(model.weights[hvd.rank() :], root_rank=0)
    with pytest.raises(UsageError, match="not a variable"):
        hvd.broadcast_variables([np.ones(1)], root_rank=0)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def variables_of_a_rank_stay(folder: Path) -> None:
    model = compiled_model(seed=hvd.rank())
    own = model.layers[-1].bias
    own.assign(np.full(own.shape, 2.0 + hvd.rank()))
    model.optimizer.register_local_var(own)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[own])
    callback.set_model(model)
    callback.on_batch_begin(0)
    assert np.asarray(own.numpy()).tolist() == [2.0 + hvd.rank()] * 2
    fit(model)
    assert_equal_on_all_ranks("shared", model.get_weights()[:-1])


def local_layers(folder: Path) -> None:
    model = make_model(0, Recipe())
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=model.layers[-1]
    )
    model.compile(optimizer, "mse")
    fit(model)
    *shared, kernel, _ = model.get_weights()
    assert_equal_on_all_ranks("shared", shared[:1])
    kernels = np.asarray(hvd.allgather(kernel[None]))
    assert not np.array_equal(kernels[0], kernels[1])


def learning_rates(folder: Path) -> None:
    model = compiled_model()
    rates: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(rate_of(model))
    )
    history = fit(
        model,
        hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=1),
        hvd.callbacks.LearningRateScheduleCallback(0.8, 0.5, start_epoch=1),
        note,
        epochs=3,
    )
    assert rates == pytest.approx(
        [0.8 * (1 + n / 3) / 2 for n in (1, 2, 3)] + [0.8] * 3 + [0.4] * 3
    )
    assert history["lr"] == pytest.approx([0.8, 0.8, 0.4])


def rate_of(model: Model) -> float:
    if keras.backend.backend() == "jax":
        model.jax_state_sync()  # `fit` keeps the values elsewhere between two batches
    return float(model.optimizer.learning_rate.numpy())


def best_model(folder: Path) -> None:
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    callback.filepath = str(folder / f"best_{hvd.rank()}.keras")
    model = compiled_model()
    fit(model, callback)
    loaded = hvd.load_model(callback.filepath)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert int(loaded.optimizer.iterations.numpy()) == 3
    fit(loaded)
    fit(model)
    assert_equal_on_all_ranks("loaded", loaded.get_weights())
    for mine, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def saved_models_load_without_horovod(folder: Path) -> None:
    path = str(folder / f"saved_{hvd.rank()}.keras")
    model = compiled_model(backward_passes_per_step=3)
    fit(model)
    model.save(path)
    plain = keras.models.load_model(path)
    assert isinstance(plain.optimizer, keras.optimizers.SGD)
    assert type(plain.optimizer).__module__.startswith("keras.")
    assert int(plain.optimizer.iterations.numpy()) == 3
    momentum = [variable.numpy() for variable in plain.optimizer.variables[2:]]
    assert any(np.any(each) for each in momentum)


def copies_reduce(folder: Path) -> None:
    model = compiled_model()
    fit(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        fit(copied)
        assert_equal_on_all_ranks("copy", copied.get_weights())


def metrics_that_differ(folder: Path) -> None:
    callback = hvd.callbacks.MetricAverageCallback()
    callback.set_model(compiled_model())
    logs = {"loss": float(hvd.rank())}
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": 0.5}
    with pytest.raises(MismatchError, match="rank 1: it has the metrics"):
        callback.on_epoch_end(0, {f"loss{hvd.rank()}": 1.0})


def wrong_arguments(folder: Path) -> None:
    plain = keras.optimizers.SGD
    for options, words in (
        ({"op": hvd.Adasum}, "op=Adasum"),
        ({"device_dense": "/cpu:0"}, "device_dense"),
        ({"groups": 0}, "groups=0"),
        ({"groups": [[1]]}, "groups"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor"),
    ):
        with pytest.raises(UsageError, match=words):
            hvd.DistributedOptimizer(plain(0.1), **options)
    with pytest.raises(UsageError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(plain(0.1)))
    with pytest.raises(UsageError, match="turn them around"):
        hvd.DistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(plain(0.1)))
        )
    model = make_model(0, Recipe())
    model.compile(plain(0.1), "mse")
    with pytest.raises(UsageError, match="averages no gradients"):
        hvd.elastic.Training(model)
    with pytest.raises(UsageError, match="backward_passes_per_step"):
        hvd.elastic.Training(compiled_model(backward_passes_per_step=2))
    with pytest.raises(UsageError, match="leave shard_state out"):
        hvd.elastic.Training(compiled_model(shard_state=True))
    training = hvd.elastic.Training(compiled_model())
    with pytest.raises(UsageError, match=r"arrays of \[3, 4\] samples"):
        training.dataset((np.ones((3, 3)), np.ones((4, 2))), batch_size=2)
    with pytest.raises(UsageError, match="batch_size=None of tuple"):
        training.dataset((np.ones((3, 3)), np.ones((3, 2))))
    training.dataset((np.ones((3, 3)), np.ones((3, 2))), batch_size=2)
    rows: Any = np.ones((3, 3)), np.ones((3, 2))
    with pytest.raises(UsageError, match="global_batch=0"):
        training.dataset(rows, batch_size=2, global_batch=0)
    summing = hvd.elastic.Training(compiled_model(op=hvd.Sum))
    with pytest.raises(UsageError, match="global_batch needs op=Average"):
        summing.dataset(rows, batch_size=2, global_batch=2)
    with pytest.raises(UsageError, match=r"training\.dataset"):
        fit(training._state.model, training)  # of other data, which would be trained in silence
    with pytest.raises(UsageError, match="batches of generator"):
        training.dataset((i for i in range(3)), batch_size=2)
    with pytest.raises(UsageError, match="synchronized"):
        hvd.SyncBatchNormalization(synchronized=True)


def sets_of_ranks(folder: Path) -> None:
    first = hvd.add_process_set([0])
    model = compiled_model(seed=hvd.rank(), process_set=first)
    expected = make_model(hvd.rank(), Recipe())
    expected.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    for each in (model, expected):
        fit(each)
    for mine, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    hvd.remove_process_set(first)


def own_loop(folder: Path) -> None:
    """``apply`` outside of a jitted step, by a loop of one's own."""
    variable = keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    for _ in range(2):
        gradient = keras.ops.convert_to_tensor(np.full(2, float(hvd.rank())), variable.dtype)
        optimizer.apply([gradient], [variable])
    np.testing.assert_allclose(variable.numpy(), [0.0, 1.0])


def gradients_leave_in_the_backward_pass(folder: Path) -> None:
    """On PyTorch from the second step on, until a rank applies other gradients."""
    if keras.backend.backend() != "torch":
        return
    variable = keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    sent = []
    for step in range(4):
        variable.value.grad = None
        (variable.value * (hvd.rank() + 1.0)).sum().backward()
        overlap = optimizer._reducer._overlap
        sent.append(overlap is not None and len(overlap._flights) == 1)
        gradient = variable.value.grad
        if step == 2 and hvd.rank() == 1:
            gradient *= 2.0
        optimizer.apply([gradient], [variable])
    assert sent == [False, True, True, False]
    np.testing.assert_allclose(variable.numpy(), np.array([1.0, 2.0]) - 3 * 1.5 - 2.5)


def newcomers_begin_as_the_others(folder: Path) -> None:
    """In a new job, an optimizer of an earlier one on rank 0, and a new one on rank 1."""
    if keras.backend.backend() != "torch":
        return
    for options, grown in (({}, 1.5), ({"backward_passes_per_step": 2}, 3.0)):
        variable = keras.Variable([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        for factor in (1.0, 2.0, 2.0):  # the last one is half a step of two passes
            variable.value.grad = None
            (variable.value * (hvd.rank() + 1.0)).sum().backward()
            variable.value.grad *= factor
            optimizer.apply([variable.value.grad], [variable])
        hvd.shutdown()
        variable.value.sum().backward()  # sends nothing, and does not fail
        hvd.init()
        variable.assign([1.0, 2.0])
        if hvd.rank() == 1:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        for _ in range(4):
            variable.value.grad = None
            (variable.value * (hvd.rank() + 1.0)).sum().backward()
            optimizer.apply([variable.value.grad], [variable])
        steps = 4 // options.get("backward_passes_per_step", 1)
        np.testing.assert_allclose(variable.numpy(), np.array([1.0, 2.0]) - steps * grown)


def passes_are_those_of_a_rank_and_a_job(folder: Path) -> None:
    """An elastic state neither sends the sums of half a step nor goes on with them later."""
    if keras.backend.backend() != "jax":  # on PyTorch, they are no variables
        return
    model = compiled_model(backward_passes_per_step=2)
    fit(model)  # three passes
    state = hvd.elastic.KerasState(model)
    variables = model.optimizer._agg_helper.variables
    before = [np.array(variable.numpy()) for variable in variables]
    assert int(before[0]) == 1
    state.sync()
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    state.save()
    hvd.shutdown()
    hvd.init()
    state.restore()
    state.on_reset()
    assert not any(np.any(variable.numpy()) for variable in variables)
    fit(model)
    assert_equal_on_all_ranks("half a step", model.get_weights())


def memory_of_gradients_is_used_again(folder: Path) -> None:
    """A loop that sets gradients to zero in place between the passes of a step."""
    if keras.backend.backend() != "torch":
        return
    variable = keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    for factor in (1.0, 4.0):
        if variable.value.grad is not None:
            variable.value.grad.zero_()
        (variable.value * factor * (hvd.rank() + 1.0)).sum().backward()
        optimizer.apply([variable.value.grad], [variable])
    np.testing.assert_allclose(variable.numpy(), np.array([1.0, 2.0]) - 5 * 1.5)


class Batches(keras.utils.PyDataset):
    """Each batch counts as a sample."""

    def __init__(self, words: np.ndarray, targets: np.ndarray) -> None:
        super().__init__()
        self._rows = words, targets

    def __len__(self) -> int:
        return len(self._rows[0]) // 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return tuple(column[4 * index : 4 * index + 4] for column in self._rows)


def an_elastic_fit_takes_what_fit_takes(folder: Path) -> None:
    """Of the last step, one rank has fewer samples, or none: then its gradients count less."""
    words, targets = rows_of([0, 1], 0, 2)
    sources: list[tuple[Any, int, int | None]] = [
        ((words[:11], targets[:11]), 11, 4),
        ([*zip(words[:9], targets[:9], strict=True)], 9, 4),
        (Batches(words[:12], targets[:12]), 12, None),
    ]
    if keras.backend.backend() == "jax":  # which compiles each anew
        del sources[1:]
    for source, rows, size in sources:
        model, alone = compiled_model(), make_model(0, Recipe())
        training = hvd.elastic.Training(model)
        model.fit(
            training.dataset(source, size, shuffle=False), initial_epoch=training.epoch,
            epochs=2, shuffle=False, verbose=0, callbacks=[training],
        )  # fmt: skip
        alone.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        alone.fit(words[:rows], targets[:rows], batch_size=8, epochs=2, shuffle=False, verbose=0)
        assert_equal_on_all_ranks("elastic fit", model.get_weights())
        for mine, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)
        model.save(folder / f"elastic-{hvd.rank()}.keras")
        keras.models.load_model(folder / f"elastic-{hvd.rank()}.keras")


def elastic_loops_weigh_short_steps(folder: Path) -> None:
    words, targets = rows_of([0, 1], 0, 2)
    for op, rate in ((hvd.Average, 0.1), (hvd.Sum, 0.2)):
        model, alone = compiled_model(op=op), make_model(0, Recipe())
        training = hvd.elastic.Training(model)
        for _ in training.epochs(2):
            for batch in training.batches((words[:11], targets[:11]), 4, shuffle=False):
                with training.guard():
                    model.train_on_batch(*batch)
        alone.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
        alone.fit(words[:11], targets[:11], batch_size=8, epochs=2, shuffle=False, verbose=0)
        for mine, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)


def compiled_steps_reduce(folder: Path) -> None:
    """On PyTorch, where jit_compile=True compiles the step that runs the backward pass."""
    if keras.backend.backend() != "torch":
        return
    import torch

    variable = keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))

    @partial(torch.compile, backend="eager")  # all but the code that it would generate
    def run_backward() -> None:
        (variable.value * (hvd.rank() + 1.0)).sum().backward()

    for _ in range(3):
        variable.value.grad = None
        run_backward()
        optimizer.apply([variable.value.grad], [variable])
    assert optimizer._reducer._overlap is not None
    np.testing.assert_allclose(variable.numpy(), np.array([1.0, 2.0]) - 3 * 1.5)


CASES = (
    values, variables_of_the_root, variables_of_a_rank_stay, local_layers, learning_rates,
    best_model, saved_models_load_without_horovod, copies_reduce, metrics_that_differ,
    wrong_arguments, sets_of_ranks, own_loop, gradients_leave_in_the_backward_pass,
    memory_of_gradients_is_used_again, newcomers_begin_as_the_others,
    passes_are_those_of_a_rank_and_a_job,
    an_elastic_fit_takes_what_fit_takes, elastic_loops_weigh_short_steps, compiled_steps_reduce,
)  # fmt: skip


def run_all(folder: Path) -> None:
    """Run all cases, and say which one failed."""
    for case in CASES:
        try:
            case(folder)
        except BaseException as error:
            error.add_note(f"in the case {case.__name__}")
            raise
