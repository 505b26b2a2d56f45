"""Training on several ranks leaves the weights of one process with the joint batch.

A case is a function ``case(rank, size)`` that runs on every rank at the same time. All of it is
computed in float64.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

import horovod.mxnet as hvd

STEPS = 12
ROWS = 8
TOLERANCE = 1e-9
OPTIMIZER = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}


def _batch(step: int, rank: int) -> tuple[Any, Any]:
    generator = np.random.default_rng((step, rank))
    return generator.standard_normal((ROWS, 5)), generator.standard_normal((ROWS, 3))


def _joint(step: int, size: int) -> tuple[Any, Any]:
    xs, ys = zip(*(_batch(step, rank) for rank in range(size)), strict=True)
    return np.concatenate(xs), np.concatenate(ys)


def _array(values: Any) -> Any:
    return mx.nd.array(values, dtype="float64")


class _OfAllRanks(mx.optimizer.SGD):  # type: ignore[misc]
    """Divides the gradients of a joint batch by the number of ranks.

    In float64; numbers that MXNet's operations are given as options are rounded to float32.
    """

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(**options)
        self.size = mx.nd.array([size], dtype="float64")

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        for each in grad if isinstance(grad, (list, tuple)) else [grad]:
            each[:] = mx.nd.broadcast_div(each.reshape(-1), self.size).reshape(each.shape)
        super().update_multi_precision(index, weight, grad, state)


def _net(seed: int) -> Any:
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(8, activation="tanh", in_units=5))
        net.add(mx.gluon.nn.Dense(3, in_units=8))
    net.cast("float64")
    net.initialize()
    generator = np.random.default_rng(seed)
    for each in net.collect_params().values():
        each.set_data(_array(generator.standard_normal(each.shape)))
    return net


def _backward(net: Any, x: Any, y: Any) -> None:
    with mx.autograd.record():
        loss = mx.gluon.loss.L2Loss()(net(_array(x)), _array(y))
    loss.backward()


def _weights(net: Any) -> dict[str, Any]:
    return {name: each.data().asnumpy() for name, each in net.collect_params().items()}


def _expect_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert got[name].dtype == np.float64
        np.testing.assert_allclose(got[name], values, rtol=0, atol=TOLERANCE, err_msg=name)


def _train_alone(size: int, passes: int = 1) -> dict[str, Any]:
    net = _net(seed=0)
    if passes > 1:
        net.collect_params().setattr("grad_req", "add")
    optimizer = _OfAllRanks(size, **OPTIMIZER)
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    for step in range(STEPS):
        _backward(net, *_joint(step, size))
        if (step + 1) % passes == 0:
            trainer.step(ROWS * passes)
            if passes > 1:
                net.collect_params().zero_grad()
    return _weights(net)


def _train_together(rank: int, passes: int = 1, hybrid: bool = False, **options: Any) -> Any:
    net = _net(seed=rank)  # all ranks begin with the values of rank 0
    if hybrid:
        net.hybridize()
    if passes > 1:
        net.collect_params().setattr("grad_req", "add")
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", dict(OPTIMIZER), **options)
    for step in range(STEPS):
        _backward(net, *_batch(step, rank))
        if (step + 1) % passes == 0:
            trainer.step(ROWS * passes)
            if passes > 1:
                net.collect_params().zero_grad()
    hvd.check_in_sync(net)
    return _weights(net)


def a_trainer_equals_one_process(rank: int, size: int) -> None:
    wanted = _train_alone(size)
    for options in (
        {},
        {"num_groups": 2},
        {"num_groups": 50, "prefix": "many."},
        {"gradient_predivide_factor": 3.0},
        {"hybrid": True},
    ):
        _expect_equal(_train_together(rank, **options), wanted)


def a_trainer_that_accumulates_equals_one_process(rank: int, size: int) -> None:
    _expect_equal(_train_together(rank, passes=4), _train_alone(size, passes=4))


def _symbol() -> Any:
    data, label = mx.sym.Variable("data", dtype="float64"), mx.sym.Variable("label")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="one"), "tanh")
    output = mx.sym.FullyConnected(hidden, num_hidden=3, name="two")
    return mx.sym.LinearRegressionOutput(output, label, name="loss")


def _module(rows: int, seed: int, optimizer: Any) -> Any:
    data = mx.io.DataDesc("data", (rows, 5), dtype="float64")
    label = mx.io.DataDesc("label", (rows, 3), dtype="float64")
    module = mx.mod.Module(_symbol(), label_names=["label"])
    module.bind(data_shapes=[data], label_shapes=[label])
    module.init_params()
    arguments, others = module.get_params()
    generator = np.random.default_rng(seed)
    for name in sorted(arguments):
        arguments[name][:] = _array(generator.standard_normal(arguments[name].shape))
    hvd.broadcast_parameters(arguments, root_rank=0)
    hvd.broadcast_parameters(others, root_rank=0)
    module.set_params(arguments, others)
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    return module


def _train_module(module: Any, batches: Any) -> dict[str, Any]:
    for x, y in batches:
        module.forward_backward(mx.io.DataBatch([_array(x)], [_array(y)]))
        module.update()
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


def a_module_equals_one_process(rank: int, size: int) -> None:
    options_of_optimizer = {"rescale_grad": 1.0 / ROWS, **OPTIMIZER}
    joint = [_joint(step, size) for step in range(STEPS)]
    alone = _module(size * ROWS, 0, _OfAllRanks(size, **options_of_optimizer))
    wanted = _train_module(alone, joint)
    for options in ({}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}):
        distributed = hvd.DistributedOptimizer(
            mx.optimizer.create("sgd", **options_of_optimizer), **options
        )
        module = _module(ROWS, rank, distributed)
        mine = [_batch(step, rank) for step in range(STEPS)]
        _expect_equal(_train_module(module, mine), wanted)
        assert distributed.rescale_grad == 1.0 / ROWS
        assert distributed.learning_rate == OPTIMIZER["learning_rate"]


CASES = (
    a_trainer_equals_one_process,
    a_trainer_that_accumulates_equals_one_process,
    a_module_equals_one_process,
)
