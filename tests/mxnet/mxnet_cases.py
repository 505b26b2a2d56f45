"""What old scripts do with horovod.mxnet besides plain training; see :mod:`mxnet_training`."""

from __future__ import annotations

import ast
import copy
import inspect
import io
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

import horovod.mxnet as hvd
from horovod._train.elastic.checkpoint.data import Packed
from horovod._train.elastic.checkpoint.file import read, write
from horovod._train.logged.call import flush_before_join
from horovod._train.logged.outlets import Outlets
from horovod.errors import UsageError
from horovod.mxnet import native_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

GRADIENTS = 161


def logged_values_are_averaged(rank: int, size: int) -> None:
    written = []
    write, Outlets.write = Outlets.write, lambda _, step, values, __: written.append((step, values))
    try:
        array = mx.nd.array([rank + 1.5])
        hvd.log(loss=array, rank=rank)
        hvd.log({"train/size": size}, weight=rank)
        array[:] = -1.0  # too late
        flush_before_join()
    finally:
        Outlets.write = write
    mean = (size - 1) / 2
    expected = [(0, {"loss": mean + 1.5, "rank": mean}), (0, {"train/size": size})]
    assert written == (expected if rank == 0 else [])


def gradients_come_in_any_order(rank: int, size: int, steps: int = 1000) -> None:
    """Each rank has an order of its own in each step, and waits for nothing but its last one."""
    arrays = [mx.nd.zeros(1 + 37 * number % 4000) for number in range(GRADIENTS)]
    generator = np.random.default_rng(rank)
    for step in range(steps):
        for number in generator.permutation(GRADIENTS):
            arrays[number] += step + rank
            hvd.allreduce_(arrays[number], name=f"g{number}", priority=-int(number))
        if step % 100 == 99:
            mx.nd.waitall()
    # Each step adds the average of step + rank to what is the same on all ranks.
    total = steps * (steps - 1) / 2 + steps * (size - 1) / 2
    for array in arrays:
        np.testing.assert_allclose(array.asnumpy(), total, rtol=1e-4)


def priorities_are_handed_on(rank: int, size: int) -> None:
    """Those of the caller, and of a trainer those that let the first layers go first."""
    seen: list[tuple[str, int]] = []
    push = native_ops.push

    def recorded(request: native_ops.Request) -> None:
        seen.append((request.name.decode(), request.priority))
        push(request)

    parameters = [mx.gluon.Parameter(f"w{number}", shape=(3,)) for number in range(3)]
    for each in parameters:
        each.initialize(mx.init.Zero())
    native_ops.push = recorded
    try:
        hvd.allreduce_(mx.nd.ones(3), name="first", priority=5)
        hvd.broadcast_(mx.nd.ones(3), 0, name="second", priority=-7)
        trainer = hvd.DistributedTrainer(parameters, "sgd", prefix="handed.")
        with mx.autograd.record():
            loss = mx.nd.add_n(*(each.data() for each in parameters)).sum()
        loss.backward()
        trainer.step(1)
    finally:
        native_ops.push = push
    mx.nd.waitall()
    of_trainer = [(f"handed.{number}", -number) for number in range(3)]
    assert seen == [("first", 5), ("second", -7), *of_trainer], seen


def arrays_may_go_at_once(rank: int, size: int) -> None:
    results = [
        hvd.allreduce(mx.nd.ones((50, 17)) * number, name=f"gone{number}", op=hvd.Sum)
        for number in range(100)
    ]
    for number in range(100):
        hvd.allreduce_(mx.nd.ones(1000), name=f"dropped{number}")
    for number, result in enumerate(results):
        assert (result.asnumpy() == number * size).all()


def what_was_computed_before_is_waited_for(rank: int, size: int) -> None:
    x = mx.nd.ones((200, 200))
    for _ in range(20):
        x = mx.nd.dot(x, x) / 200
    y = hvd.allreduce(x * (rank + 1), op=hvd.Sum)
    gathered = hvd.allgather(y + 1)
    np.testing.assert_allclose(gathered.asnumpy(), size * (size + 1) / 2 + 1, rtol=1e-5)


def arrays_of_the_other_interface_stay_what_they_are(rank: int, size: int) -> None:
    array = mx.np.ones((size, 3)) * rank
    for result in (
        hvd.allreduce(array),
        hvd.broadcast(array, 0),
        hvd.allgather(array),
        hvd.alltoall(array),
        hvd.reducescatter(array),
    ):
        assert type(result) is mx.np.ndarray
    assert (hvd.allreduce(array, op=hvd.Sum).asnumpy() == size * (size - 1) / 2).all()


def two_trainers_and_compression(rank: int, size: int) -> None:
    for prefixes in (("one.", "two."), ("same.", "same.")):
        parameters = [mx.gluon.Parameter(f"w{number}", shape=(3, 4)) for number in range(2)]
        for each in parameters:
            each.initialize(mx.init.Zero())
        trainers = [
            hvd.DistributedTrainer(
                [each], "sgd", {"learning_rate": 1.0}, hvd.Compression.fp16, prefix=prefix
            )
            for each, prefix in zip(parameters, prefixes, strict=True)
        ]
        # Ranks take their steps in different orders.
        for number in (0, 1) if rank % 2 else (1, 0):
            with mx.autograd.record():
                loss = (parameters[number].data() * (rank + 1)).sum()
            loss.backward()
            trainers[number].step(1)
        for each in parameters:
            np.testing.assert_allclose(each.data().asnumpy(), -(size + 1) / 2, rtol=1e-3)


def a_copied_optimizer_averages_and_a_pickled_one_says_that_it_does_not(
    rank: int, size: int
) -> None:
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    for each in (optimizer, copy.deepcopy(optimizer)):
        weight = mx.nd.zeros(2)
        each.update(0, weight, mx.nd.full(2, rank), None)
        np.testing.assert_array_equal(weight.asnumpy(), -(size - 1) / 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert type(pickle.loads(pickle.dumps(optimizer))) is mx.optimizer.SGD
    assert any("wrap it again" in str(each.message) for each in caught)


def a_deferred_parameter_is_sent_in_the_first_pass(rank: int, size: int) -> None:
    net = mx.gluon.nn.Dense(4, prefix="deferred_")
    net.initialize(mx.init.Uniform())
    mx.random.seed(100 + rank)
    hvd.broadcast_parameters(net.collect_params(), root_rank=size - 1, prefix="first.")
    net(mx.nd.ones((2, 3)))
    hvd.check_in_sync(net)
    assert np.abs(net.weight.data().asnumpy()).max() > 0


def members_and_others(rank: int, size: int) -> None:
    """Who is outside of the set goes on with gradients of its own."""
    even = hvd.add_process_set(range(0, size, 2))
    members = len(range(0, size, 2))
    wanted = (members - 1) if rank % 2 == 0 else rank
    optimizer = hvd.DistributedOptimizer(
        mx.optimizer.create("sgd", learning_rate=1.0), process_set=even
    )
    weight, gradient = mx.nd.zeros(5), mx.nd.ones(5) * rank
    optimizer.update(0, weight, gradient, optimizer.create_state(0, weight))
    np.testing.assert_allclose(weight.asnumpy(), -float(wanted))
    parameter = mx.gluon.Parameter("p", shape=(2,))
    parameter.initialize(mx.init.Zero())
    trainer = hvd.DistributedTrainer(
        {"p": parameter}, "sgd", {"learning_rate": 1.0}, process_set=even
    )
    with mx.autograd.record():
        loss = (parameter.data() * rank).sum()
    loss.backward()
    trainer.step(1)
    np.testing.assert_allclose(parameter.data().asnumpy(), -float(wanted))
    assert hvd.remove_process_set(even)


def states_of_a_network_and_its_trainer(rank: int, size: int) -> None:
    net = mx.gluon.nn.Dense(2, in_units=3, prefix="kept_")
    net.initialize(mx.init.Constant(float(rank)))
    trainer = hvd.DistributedTrainer(net.collect_params(), "adam", prefix="kept.")
    state = hvd.elastic.MXNetState(net, trainer, epoch=rank)
    state.sync()
    assert state.epoch == 0
    assert (net.weight.data().asnumpy() == 0).all()
    net.weight.set_data(mx.nd.ones((2, 3)))
    state.restore()
    assert (net.weight.data().asnumpy() == 0).all()


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def a_file_of_a_commit_brings_a_trainer_back(rank: int, size: int) -> None:
    """As data: what a file holds must not be able to run code."""

    def trained(steps: int, snapshot: Any = None) -> tuple[Any, np.ndarray]:
        net = mx.gluon.nn.Dense(2, in_units=3, prefix="filed_")
        net.initialize(mx.init.Constant(1.0), force_reinit=True)
        options = {"learning_rate": 0.1}
        trainer = hvd.DistributedTrainer(net.collect_params(), "adam", options, prefix="filed.")
        state = hvd.elastic.MXNetState(net, trainer)
        if snapshot is not None:
            for name, handler in state._handlers.items():
                handler.load(snapshot[name])
        for _ in range(steps):
            with mx.autograd.record():
                loss = (net(mx.nd.ones((4, 3))) ** 2).sum()
            loss.backward()
            trainer.step(4)
        state.save()
        kept = {name: handler.snapshot() for name, handler in state._handlers.items()}
        return kept, net.weight.data().asnumpy()

    kept, _ = trained(3)
    packed, stream = Packed(), io.BytesIO()
    values = {name: packed.pack(each) for name, each in kept.items()}
    write(stream, {"kept": values}, packed.buffers)
    text = stream.getvalue()
    assert not any(isinstance(each, bytes) for each in _leaves(kept))  # such as a pickle
    found = read(io.BytesIO(text), len(text))["kept"]
    _, resumed = trained(2, found)
    np.testing.assert_array_equal(resumed, trained(5)[1])


def _convolutions() -> Any:
    net = mx.gluon.nn.HybridSequential(prefix="conv_")
    with net.name_scope():
        for channels in (8, 16):
            net.add(mx.gluon.nn.Conv2D(channels, 3, padding=1))
            net.add(mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"))
            net.add(mx.gluon.nn.MaxPool2D())
        net.add(mx.gluon.nn.Dense(4))
    return net


def a_hybridized_network_with_convolutions_trains(rank: int, size: int) -> None:
    """oneDNN keeps arrays in layouts of its own, and workers of the DataLoader are forks."""
    net = _convolutions()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    net(mx.nd.ones((8, 3, 16, 16))).wait_to_read()  # oneDNN gives the weights a layout of its own
    hvd.broadcast_parameters(net.collect_params(), 0, prefix="convolutions.")
    hvd.check_in_sync(net)
    generator = np.random.default_rng(rank)
    images = generator.standard_normal((24, 3, 16, 16)).astype("float32")
    data = mx.gluon.data.ArrayDataset(images, generator.integers(0, 4, 24).astype("float32"))
    loader = mx.gluon.data.DataLoader(data, batch_size=8, num_workers=1)
    trainer = hvd.DistributedTrainer(net.collect_params(), "adam", prefix="convolutions.")
    for _ in range(2):
        for x, y in loader:
            with mx.autograd.record():
                features = net(x.as_in_context(mx.cpu()))
                loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(features, y)
            loss.backward()
            trainer.step(8)
    trained = {k: v for k, v in net.collect_params().items() if "running" not in k}
    hvd.check_in_sync(trained)
    hvd.broadcast_parameters(net.collect_params(), 0, prefix="again.")
    # A result of a convolution, as oneDNN has left it.
    result = net[0](mx.nd.array(images))
    gathered = hvd.allgather(result)
    averaged = hvd.allreduce(result)
    parts = gathered.asnumpy().reshape(size, *result.shape)
    np.testing.assert_allclose(averaged.asnumpy(), parts.mean(axis=0), rtol=1e-4, atol=1e-5)


def _refused(function: Any, *args: Any, **kwargs: Any) -> str:
    try:
        function(*args, **kwargs)
    except UsageError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def wrong_arguments_are_explained(rank: int, size: int) -> None:
    array = mx.nd.ones((4, 2))
    assert "tostype('default')" in _refused(hvd.allreduce, array.tostype("row_sparse"))
    assert "not a ndarray" in _refused(hvd.allreduce, np.ones(3))
    assert "share memory" in _refused(hvd.grouped_allreduce_, [array[0:2], array[2:4]])
    assert "share memory" in _refused(hvd.grouped_allreduce_, [array, array])
    assert "num_groups=-1" in _refused(hvd.DistributedTrainer, [], "sgd", num_groups=-1)
    assert "collect_params" in _refused(hvd.broadcast_parameters, [array])
    assert hvd.grouped_allreduce([]) == []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameter = mx.gluon.Parameter("unused", shape=(2,))
        parameter.initialize(mx.init.Zero())
        hvd.DistributedTrainer([parameter], hvd.DistributedOptimizer(mx.optimizer.create("sgd")))
        assert "averages gradients itself" in str(caught[0].message)


_REDUCTION = (
    "average=None name=None priority=0 prescale_factor=1.0 postscale_factor=1.0 "
    "process_set=GLOBAL op=None"
)
_SCATTER = (
    "op=Average name=None priority=0 process_set=GLOBAL prescale_factor=1.0 postscale_factor=1.0"
)
_PLAIN = "name=None priority=0 process_set=GLOBAL"
SIGNATURES = {
    "allreduce": f"tensor {_REDUCTION}",
    "allreduce_": f"tensor {_REDUCTION}",
    "grouped_allreduce": f"tensors {_REDUCTION}",
    "grouped_allreduce_": f"tensors {_REDUCTION}",
    "allgather": f"tensor {_PLAIN}",
    "grouped_allgather": f"tensors {_PLAIN}",
    "broadcast": f"tensor root_rank {_PLAIN}",
    "broadcast_": f"tensor root_rank {_PLAIN}",
    "alltoall": f"tensor splits=None {_PLAIN}",
    "reducescatter": f"tensor {_SCATTER}",
    "grouped_reducescatter": f"tensors {_SCATTER}",
    "broadcast_parameters": "params root_rank=0 prefix=None",
    "DistributedOptimizer": (
        "optimizer gradient_predivide_factor=1.0 num_groups=0 process_set=GLOBAL"
    ),
    "DistributedTrainer": (
        "params optimizer optimizer_params=None compression=NONE gradient_predivide_factor=1.0 "
        "prefix=None num_groups=0 process_set=GLOBAL"
    ),
}


def old_scripts_find_every_argument_in_its_place(rank: int, size: int) -> None:
    known = {
        "GLOBAL": hvd.global_process_set,
        "NONE": hvd.Compression.none,
        "Average": hvd.Average,
    }
    for name, wanted in SIGNATURES.items():
        arguments = inspect.signature(getattr(hvd, name)).parameters.values()
        pairs = [each.partition("=") for each in wanted.split()]
        assert [each.name for each in arguments] == [name for name, _, _ in pairs], name
        for each, (_, has_default, text) in zip(arguments, pairs, strict=True):
            assert (each.default is not inspect.Parameter.empty) == bool(has_default), each
            if has_default:
                default = known[text] if text in known else ast.literal_eval(text)
                assert each.default == default, each


CASES = (
    old_scripts_find_every_argument_in_its_place,
    gradients_come_in_any_order,
    logged_values_are_averaged,
    priorities_are_handed_on,
    arrays_may_go_at_once,
    what_was_computed_before_is_waited_for,
    arrays_of_the_other_interface_stay_what_they_are,
    two_trainers_and_compression,
    a_copied_optimizer_averages_and_a_pickled_one_says_that_it_does_not,
    a_deferred_parameter_is_sent_in_the_first_pass,
    members_and_others,
    states_of_a_network_and_its_trainer,
    a_file_of_a_commit_brings_a_trainer_back,
    a_hybridized_network_with_convolutions_trains,
    wrong_arguments_are_explained,
)
