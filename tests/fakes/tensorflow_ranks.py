"""What a rank of a TensorFlow job does in tests; each function runs on every rank at once."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod._rank.reduction import Reduction
from horovod.tensorflow import calls


def on_one_thread() -> None:
    """No second thread that could run what the first one waits for."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)


def shuffled_step(num_gradients: int, seed: int, waits_briefly: bool = False) -> Any:
    """A step whose gradients become ready one after the other, in the order of the seed."""
    order = np.random.default_rng(seed).permutation(num_gradients)

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        reduced = {}
        ready: list[Any] = []
        for number in order:
            with tf.control_dependencies(ready):
                gradient = x[: 1 + number % 7] * float(number)
            ready = [gradient]
            name = f"gradient_{number}"
            if waits_briefly:  # as optimizers ask for, and users cannot
                call = calls.CollectiveCall(name=name, waits_briefly=True)
                reduced[number] = calls.allreduce(call, gradient, Reduction(hvd.Sum))
            else:
                reduced[number] = hvd.allreduce(gradient, op=hvd.Sum, name=name)
        return [reduced[number] for number in range(num_gradients)]

    return step


def run_shuffled_steps(num_gradients: int, num_steps: int, waits_briefly: bool = False) -> int:
    """Runs steps whose order differs between the ranks; returns how many were right."""
    on_one_thread()
    hvd.init()
    step = shuffled_step(num_gradients, hvd.rank(), waits_briefly)
    right = 0
    for number in range(num_steps):
        got = step(tf.fill([7], float(number)))
        right += all(
            np.array_equal(value, np.full(1 + i % 7, float(number * i * hvd.size())))
            for i, value in enumerate(got)
        )
    hvd.shutdown()
    return right


def _slices(rank: int) -> tf.IndexedSlices:
    values = tf.constant(np.full((rank + 1, 2), rank + 1.0), tf.float64)
    return tf.IndexedSlices(values, tf.range(rank + 1), dense_shape=tf.constant([5, 2]))


def _raised(kind: type[BaseException], call: Any) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def slices_are_gathered() -> None:
    rank, size = hvd.rank(), hvd.size()
    every = np.concatenate([np.full((r + 1, 2), r + 1.0) for r in range(size)])
    for op, expected in ((hvd.Sum, every), (hvd.Average, every / size), (None, every / size)):
        got = hvd.allreduce(_slices(rank), op=op)
        np.testing.assert_array_equal(got.values, expected)
        np.testing.assert_array_equal(
            got.indices, np.concatenate([np.arange(r + 1) for r in range(size)])
        )
        np.testing.assert_array_equal(got.dense_shape, [5, 2])
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        _raised(NotImplementedError, lambda op=op: hvd.allreduce(_slices(rank), op=op))
    for factor in ("prescale_factor", "postscale_factor"):
        _raised(NotImplementedError, lambda f=factor: hvd.allreduce(_slices(rank), **{f: 2.0}))
    assert "sparse_as_dense" in _raised(
        NotImplementedError, lambda: hvd.grouped_allreduce([_slices(rank)], op=hvd.Adasum)
    )


def slices_of_integers_average_to_floats() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype, mean in ((tf.int64, tf.float64), (tf.int32, tf.float64), (tf.int8, tf.float32)):
        values = tf.fill([1, 2], tf.cast(rank + 1, dtype))
        slices = tf.IndexedSlices(values, tf.constant([0]), dense_shape=tf.constant([5, 2]))
        for got in (hvd.allreduce(slices), hvd.grouped_allreduce([slices])[0]):
            assert got.values.dtype == mean
            expected = tf.constant([[r + 1, r + 1] for r in range(size)], dtype) / size
            np.testing.assert_array_equal(got.values, expected)


def a_gpu_that_is_not_there_is_no_place_to_run() -> None:
    size = hvd.size()
    place = {"device_dense": "/gpu:0", "device_sparse": "/device:GPU:0"}
    assert hvd.allreduce(tf.ones(3), op=hvd.Sum, **place).numpy().tolist() == [size] * 3
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()))
        hook = hvd.BroadcastGlobalVariablesHook(0, device="/gpu:0")
        hook.begin()
        tensor = hvd.allreduce(tf.ones(3), op=hvd.Sum, **place)
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([5, 2]))
        gathered = hvd.allreduce(slices, op=hvd.Sum, **place)
        rows = hvd.reducescatter(tf.ones(size), op=hvd.Sum, device_dense="/gpu:0")
        session.run(tf.compat.v1.global_variables_initializer())
        hook.after_create_session(session, None)
        assert session.run(variable) == 0.0
        assert session.run(tensor).tolist() == [size] * 3
        assert session.run(gathered).values.shape == (size, 2)
        assert session.run(rows).tolist() == [size]


def groups_mix_slices_and_tensors() -> None:
    rank, size = hvd.rank(), hvd.size()
    group = [_slices(rank), tf.ones(3), _slices(rank), tf.fill([2], 2)]
    got = hvd.grouped_allreduce(group, op=hvd.Sum)
    assert [isinstance(each, tf.IndexedSlices) for each in got] == [True, False, True, False]
    np.testing.assert_array_equal(got[1], np.full(3, size))
    np.testing.assert_array_equal(got[3], np.full(2, 2 * size))
    assert got[2].values.shape[0] == size * (size + 1) // 2
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_allgather([]) == []
    assert hvd.grouped_reducescatter([]) == []


def variables_at_other_places_are_named() -> None:
    """Of equal shapes, which would be added or overwritten by place."""
    names = ["kernel", *(("bias", "gamma") if hvd.rank() == 0 else ("gamma", "bias"))]
    variables = [tf.Variable([1.0, 2.0], name=name) for name in names]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(variable * variable) for variable in variables])
    kind = tf.errors.FailedPreconditionError
    words = ("0.kernel, 1.bias, 2.gamma", "0.kernel, 1.gamma, 2.bias", "rank 0", "rank 1")
    tape = hvd.DistributedGradientTape(tape)
    text = _raised(kind, lambda: tape.gradient(loss, variables))
    assert all(word in text for word in words), text
    text = _raised(kind, lambda: hvd.broadcast_variables(variables, 0))
    assert "'bias:0' is float32 (2,) on rank 0, missing on rank 1" in text, text


def variables_are_overwritten() -> None:
    rank, root = hvd.rank(), hvd.size() - 1
    variables = [
        tf.Variable(np.full((2, 3), rank), dtype=dtype)
        for dtype in ("float32", "int64", "bfloat16")
    ]
    variables.append(tf.Variable([rank == root]))
    got = hvd.broadcast_(variables, root)
    for variable, value in zip(variables, got, strict=True):
        expected = np.full(variable.shape, root if variable.dtype != tf.bool else 1)
        for each in (variable, value):
            np.testing.assert_array_equal(tf.cast(each, tf.int32), expected)
    assert hvd.broadcast_([], root) == []


def variables_of_a_session_are_overwritten() -> None:
    rank, root = hvd.rank(), hvd.size() - 1
    for use_resource in (True, False):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            with tf.compat.v1.variable_scope("vars", use_resource=use_resource):
                variables = [
                    tf.compat.v1.get_variable(name, initializer=tf.constant([rank, rank], dtype))
                    for name, dtype in (("a", tf.float32), ("b", tf.int32))
                ]
            assign = hvd.broadcast_(variables, root)
            session.run(tf.compat.v1.global_variables_initializer())
            np.testing.assert_array_equal(session.run(assign), [[root] * 2] * 2)
            np.testing.assert_array_equal(session.run(variables), [[root] * 2] * 2)


def numbers_are_read_when_they_run() -> None:
    first = hvd.add_process_set([0])
    number = first.process_set_id
    with tf.Graph().as_default() as graph:
        ops = (
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.size_op(number),
            hvd.process_set_included_op(number),
            hvd.process_set_included_op(99),
        )
        size_of_set = ops[4]
        with tf.compat.v1.Session(graph=graph) as session:
            got = session.run(ops)
            assert hvd.remove_process_set(first)
            _raised(tf.errors.InvalidArgumentError, lambda: session.run(size_of_set))
            included = session.run(ops[5])
    rank, size = hvd.rank(), hvd.size()
    assert got == (rank, size, hvd.local_rank(), hvd.local_size(), 1, int(rank == 0), -3)
    assert included == -3
    # A set that was never registered, and one that is gone, are found before anything is sent.
    for process_set in (first, hvd.ProcessSet([0])):
        _raised(ValueError, lambda s=process_set: hvd.allreduce(tf.ones(1), process_set=s))


def shapes_are_known_in_graphs() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [4, 3])
        unknown = tf.compat.v1.placeholder(tf.float32)
        assert hvd.allreduce(x).shape == [4, 3]
        assert hvd.broadcast(x, 0).shape == [4, 3]
        assert [each.shape for each in hvd.grouped_allreduce([x, x[0]])] == [[4, 3], [3]]
        for rows in (hvd.allgather(x), hvd.reducescatter(x), hvd.alltoall(x)):
            assert rows.shape.as_list() == [None, 3]
        output, received = hvd.alltoall(x, splits=[1] * hvd.size())
        assert (output.shape.as_list(), received.shape.as_list()) == ([None, 3], [None])
        assert hvd.allreduce(unknown).shape.rank is None
        assert hvd.allgather(unknown).shape.rank is None
        assert hvd.join().shape == []
        assert hvd.rank_op().shape == []
        scalar = tf.compat.v1.placeholder(tf.float32, [])
        for function in (hvd.reducescatter, hvd.allgather, hvd.alltoall):
            _raised(ValueError, lambda f=function: f(scalar))


def equal_operations_stay_two() -> None:
    """Neither merged nor computed in advance: each run of a function submits all it says."""
    from horovod._rank import context

    engine = context.global_group().engine

    @tf.function
    def step() -> Any:
        constant = tf.constant([1.0, 2.0])
        unused = hvd.allreduce(constant, op=hvd.Sum)
        del unused
        return hvd.allreduce(constant, op=hvd.Sum) + hvd.allreduce(constant, op=hvd.Sum)

    before = engine.statistics()["submitted"]
    for _ in range(3):
        np.testing.assert_array_equal(step(), np.array([2.0, 4.0]) * hvd.size())
    assert engine.statistics()["submitted"] - before == 9


def iterations_of_a_loop_run_at_once() -> None:
    @tf.function
    def loop() -> Any:
        sums = tf.TensorArray(tf.float32, 100)
        for i in tf.range(100):
            sums = sums.write(i, hvd.allreduce(tf.cast(i, tf.float32), op=hvd.Sum, name="turn"))
        return sums.stack()

    for _ in range(2):
        np.testing.assert_array_equal(loop(), np.arange(100.0) * hvd.size())


def names_reach_the_wire() -> None:
    """A mismatch tells the name: the user's, or that of the node."""
    x = tf.ones(3 + hvd.rank())

    @tf.function
    def scoped(ignore: bool) -> Any:
        with tf.name_scope("outer"):
            return hvd.allreduce(x, name="inner", ignore_name_scope=ignore)

    for expected, call in (
        ("allreduce.mine", lambda: hvd.allreduce(x, name="mine")),
        ("allreduce.outer/inner", lambda: scoped(False)),
        ("allreduce.inner", lambda: scoped(True)),
        ("allgather.rows", lambda: hvd.allgather(tf.ones((1, 1 + hvd.rank())), name="rows")),
    ):
        text = _raised(tf.errors.FailedPreconditionError, call)
        assert f"for {expected}:" in text, text
        assert "tensorflow_ranks.py:" in text


def errors_have_their_classes() -> None:
    x, size = tf.ones((4, 2)), hvd.size()
    invalid, aborted = tf.errors.InvalidArgumentError, tf.errors.AbortedError
    for kind, call in (
        (invalid, lambda: hvd.alltoall(x, splits=[[1] * size])),
        (aborted, lambda: hvd.reducescatter(x, op=hvd.Max)),
        (ValueError, lambda: hvd.allreduce(x, process_set=3)),
        (ValueError, lambda: hvd.broadcast_([tf.Variable(1.0), _Reference()], 0)),
    ):
        _raised(kind, call)


class _Reference:
    class dtype:
        _is_ref_dtype = True


def a_graph_outlives_the_job() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        total = hvd.allreduce(x, op=hvd.Sum)
    with tf.compat.v1.Session(graph=graph) as session:
        for _ in range(2):
            np.testing.assert_array_equal(
                session.run(total, {x: [1, 2]}), [hvd.size(), 2 * hvd.size()]
            )
            hvd.shutdown()
            text = _raised(
                tf.errors.FailedPreconditionError, lambda: session.run(total, {x: [1, 2]})
            )
            assert "hvd.init()" in text
            hvd.init()


def torch_shares_the_engine() -> None:
    import torch

    import horovod.torch as torch_hvd

    torch_hvd.init()
    assert torch_hvd.rank() == hvd.rank()
    from horovod._rank import context

    before = context.global_group().engine.statistics()["submitted"]
    for _ in range(3):
        # Without names: both count on, so that they never get the same one.
        handle = torch_hvd.allreduce_async(torch.ones(2), op=torch_hvd.Sum)
        np.testing.assert_array_equal(hvd.allreduce(tf.ones(3), op=hvd.Sum), np.full(3, hvd.size()))
        assert torch_hvd.synchronize(handle).tolist() == [hvd.size()] * 2
    assert context.global_group().engine.statistics()["submitted"] - before == 6
    odd = hvd.rank() % 2 == 1
    # Each rank begins with another framework.
    for framework in ("torch", "tf") if odd else ("tf", "torch"):
        if framework == "torch":
            handle = torch_hvd.allreduce_async(torch.ones(2), name="both", op=torch_hvd.Sum)
        else:
            hvd.allgather(tf.ones(1), name="both")
    assert torch_hvd.synchronize(handle).tolist() == [hvd.size()] * 2


def ctrl_c_ends_an_eager_wait() -> None:
    """The last one: the operation stays in flight until the job ends."""
    if hvd.rank() == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        _raised(KeyboardInterrupt, lambda: hvd.allreduce(tf.ones(1000), name="alone"))
        timer.join()
    np.testing.assert_array_equal(
        hvd.allreduce(tf.ones(2), op=hvd.Sum, name="on"), [hvd.size()] * 2
    )


SCENARIOS = (
    slices_are_gathered,
    slices_of_integers_average_to_floats,
    a_gpu_that_is_not_there_is_no_place_to_run,
    groups_mix_slices_and_tensors,
    variables_at_other_places_are_named,
    variables_are_overwritten,
    variables_of_a_session_are_overwritten,
    numbers_are_read_when_they_run,
    shapes_are_known_in_graphs,
    equal_operations_stay_two,
    iterations_of_a_loop_run_at_once,
    names_reach_the_wire,
    errors_have_their_classes,
    a_graph_outlives_the_job,
    torch_shares_the_engine,
    ctrl_c_ends_an_eager_wait,
)


def run_scenarios() -> dict[str, str]:
    """Runs all scenarios in one job; returns the traceback of each, empty if it went well."""
    import traceback

    on_one_thread()
    hvd.init()
    results = {}
    for scenario in SCENARIOS:
        try:
            scenario()
            results[scenario.__name__] = ""
        except Exception:
            results[scenario.__name__] = traceback.format_exc()
            break
    hvd.shutdown()
    return results
