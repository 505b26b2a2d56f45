"""Optimizers of Keras whose state is divided among the ranks, on any backend, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import horovod.keras as hvd
from horovod.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS, STEPS = 6, 5


def _without_bias(optimizer: Any) -> Any:
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.1),
    "adam": lambda: keras.optimizers.Adam(0.02, amsgrad=True, global_clipnorm=0.1),
    "adamw": lambda: _without_bias(keras.optimizers.AdamW(0.02, weight_decay=0.1, clipnorm=0.2)),
    "rmsprop": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5), centered=True
    ),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.02),
    "nadam": lambda: keras.optimizers.Nadam(0.02),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05, l1_regularization_strength=0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
}


def _model(seed: int) -> keras.Model:
    keras.config.set_floatx("float64")
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(
                5, activation="tanh", kernel_constraint=keras.constraints.MaxNorm(2.0)
            ),
            keras.layers.Dense(1),
        ]
    )
    random = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape))
    return model


def _rows(ranks: list[int], steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    x = np.concatenate(
        [
            np.random.default_rng([step, rank]).normal(size=(ROWS, 3))
            for step in range(steps)
            for rank in ranks
        ]
    )
    return x, np.sin(x.sum(axis=1, keepdims=True))


def _fit(model: keras.Model, ranks: list[int], callbacks: Any = ()) -> None:
    model.fit(
        *_rows(ranks), batch_size=ROWS * len(ranks), shuffle=False, verbose=0,
        callbacks=list(callbacks),
    )  # fmt: skip


def _tolerance() -> float:
    return 1e-6 if keras.backend.backend() == "torch" else 1e-9


def _expect_same(name: str, found: Any, expected: Any) -> None:
    tolerance = _tolerance()
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(
            mine, theirs, rtol=tolerance, atol=tolerance, err_msg=f"{name}: {index}"
        )


def shares_train_as_one_process(rank: int, size: int, folder: Path) -> None:
    # Tracing takes long, and the slots are the same.
    chosen = {"jax": ["adamw"], "tensorflow": ["adamw"]}
    for name in chosen.get(keras.backend.backend(), OPTIMIZERS):
        make = OPTIMIZERS[name]
        model = _model(rank)
        model.compile(hvd.DistributedOptimizer(make(), shard_state=True), "mse")
        _fit(model, [rank], [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        alone = _model(0)
        alone.compile(make(), "mse")
        _fit(alone, list(range(size)))
        _expect_same(name, model.get_weights(), alone.get_weights())
        whole = [keras.ops.convert_to_numpy(v.value) for v in alone.optimizer.variables]
        _expect_same(f"{name}: state", model.optimizer.gather(), whole)
        for part, all_of_it in zip(model.optimizer.variables, whole, strict=True):
            elements = int(np.prod(part.shape))
            if all_of_it.ndim and all_of_it.size > 1:
                assert elements == all_of_it.size // size + (rank < all_of_it.size % size), name


def files_of_shares_load_anywhere(rank: int, size: int, folder: Path) -> None:
    path = folder / f"shares-{keras.backend.backend()}.keras"
    make = OPTIMIZERS["adam"]
    model = _model(0)
    model.compile(hvd.DistributedOptimizer(make(), shard_state=True), "mse")
    _fit(model, [rank])
    hvd.save_model(model, path)
    if keras.backend.backend() != "tensorflow":
        _fit(model, [rank])
    again = hvd.load_model(path, shard_state=True)
    if keras.backend.backend() == "tensorflow":  # whose graphs take long
        _expect_same("gathered again", again.optimizer.gather(), model.optimizer.gather())
        return
    _fit(again, [rank])
    _expect_same("loaded in shares", again.get_weights(), model.get_weights())
    if rank == 0:
        alone = keras.models.load_model(path)
        assert type(alone.optimizer).__module__.startswith("keras.")
        _fit(alone, list(range(size)))
        _expect_same("loaded without Horovod", alone.get_weights(), model.get_weights())
    text = _refusal_of(lambda: hvd.save_model(model, folder / "missing" / "model.txt"))
    assert "rank 0: ValueError" in text, text


class _Own(keras.optimizers.SGD):
    """May do anything."""


def what_shares_cannot_do_is_refused(rank: int, size: int, folder: Path) -> None:
    opts = keras.optimizers
    first = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 1)
    newer = (
        (lambda: opts.Lamb(), {}, "Lamb may compute with whole variables"),
        (lambda: opts.SGD(0.1, gradient_accumulation_steps=2), {}, "gradient_accumulation_steps"),
    )
    for make, options, expected in (
        *(() if first else newer),
        (lambda: opts.Adafactor(), {}, "Adafactor may compute with whole variables"),
        (lambda: _Own(0.1), {}, "_Own may compute"),
        (lambda: opts.LossScaleOptimizer(opts.SGD(0.1)), {}, "LossScaleOptimizer"),
        (lambda: opts.SGD(0.1, use_ema=True), {}, "use_ema=True"),
        (lambda: opts.SGD(0.1), {"backward_passes_per_step": 2}, "backward_passes_per_step"),
        (lambda: opts.SGD(0.1), {"groups": 2}, "groups"),
        (lambda: opts.SGD(0.1), {"compression": hvd.Compression.int8}, "in 8 bits"),
    ):
        text = _refusal_of(lambda m=make, o=options: hvd.DistributedOptimizer(
            m(), shard_state=True, **o))  # fmt: skip
        assert expected in text, (expected, text)
    model = _model(0)
    model.compile(hvd.DistributedOptimizer(opts.SGD(0.1, 0.9), shard_state=True), "mse")
    model.optimizer.build(model.trainable_variables)
    if keras.backend.backend() == "tensorflow":
        text = _refusal_of(lambda: hvd.elastic.KerasState(model))
        assert "elastic state of a Keras optimizer" in text, text
    for call, expected in (
        (lambda: model.save(folder / f"{rank}.keras"), "hvd.save_model(model, filepath)"),
        (lambda: hvd.broadcast_variables(model.optimizer.variables, 0), "is a share of the state"),
        (lambda: model.optimizer.register_local_var(model.weights[0]), "of which each rank"),
    ):
        text = _refusal_of(call)
        assert expected in text, (expected, text)


def _refusal_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except (UsageError, MismatchError) as error:
        return str(error)
    return ""


CASES = (
    shares_train_as_one_process,
    files_of_shares_load_anywhere,
    what_shares_cannot_do_is_refused,
)
