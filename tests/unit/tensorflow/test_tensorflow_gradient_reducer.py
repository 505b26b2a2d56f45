"""How lists of gradients are reduced, on a rank that only believes it has a peer."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from recording_ops import REDUCED, RecordingOps, pretend_two_ranks

from horovod._train.reduce_op import Average, Max, Sum
from horovod.errors import UsageError
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_reducer import GradientReducer
from horovod.tensorflow.reduction_settings import make_settings


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> RecordingOps:
    return pretend_two_ranks(monkeypatch)


def variables(*names: str) -> list[Any]:
    return [tf.Variable([1.0, 2.0], name=name) for name in names]


def gradients(*values: float) -> list[Any]:
    return [tf.constant([value, value]) for value in values]


def first_values(reduced: list[Any]) -> list[float | None]:
    return [None if g is None else float(g[0]) for g in reduced]


def test_missing_gradients_stay_missing(two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape"))
    given = gradients(1.0, 2.0)
    reduced = reducer.reduce([given[0], None, given[1]], variables("a", "b", "c"))
    assert first_values(reduced) == [REDUCED, None, 2 * REDUCED]
    assert two_ranks.names == ["Tape_Allreduce/0.a.and.1"]


def test_nothing_travels_if_there_is_no_gradient(two_ranks: RecordingOps) -> None:
    assert GradientReducer(make_settings("Tape")).reduce([None], variables("a")) == [None]
    assert two_ranks.names == []


@pytest.mark.parametrize("in_a_graph", [False, True])
def test_what_does_not_count_may_be_no_number(in_a_graph: bool, two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape"))
    reducer.weight = tf.Variable(0.0, dtype=tf.float64)
    nan = tf.constant([float("nan"), float("inf")])
    slices = tf.IndexedSlices(nan, tf.constant([1, 0]), tf.constant([2]))

    def reduce() -> Any:
        return reducer.reduce([nan, slices, tf.complex(nan, nan)], targets)

    targets = variables("a", "b", "c")
    dense, sparse, pair = (tf.function(reduce) if in_a_graph else reduce)()
    for values in (dense, sparse.values, pair):
        assert values.numpy().tolist() == [0.0, 0.0]
    reducer.weight.assign(0.5)
    assert first_values(reducer.reduce(gradients(3.0), targets[:1])) == [1.5 * REDUCED]
    summing = GradientReducer(make_settings("Tape", op=Sum))
    summing.weight = tf.Variable(0.0, dtype=tf.float64)
    assert first_values(summing.reduce([nan], targets[:1])) == [0.0]
    summing.weight.assign(0.5)
    assert first_values(summing.reduce(gradients(3.0), targets[:1])) == [3.0 * REDUCED]


@pytest.mark.parametrize("compression", [Compression.none, Compression.bf16])
def test_complex_gradients_travel_as_pairs(compression: Any, two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape", compression=compression))
    value = tf.constant([1 + 2j, 3 - 4j], tf.complex64)
    slices = tf.IndexedSlices(value[:, tf.newaxis], tf.constant([1, 0]), tf.constant([2, 1]))
    got = reducer.reduce([value, *gradients(1.0), slices], variables("a", "b", "c"))
    assert got[0].dtype == got[2].values.dtype == tf.complex64
    assert got[0].numpy().tolist() == [REDUCED * (1 + 2j), REDUCED * (3 - 4j)]
    assert got[2].values.numpy().tolist() == [[REDUCED * (1 + 2j)], [REDUCED * (3 - 4j)]]
    assert first_values(got[1:2]) == [REDUCED]
    reducer = GradientReducer(make_settings("Tape", op=Max))
    with pytest.raises(UsageError, match="op=Max of complex gradients has no meaning"):
        reducer.reduce([value], variables("a"))


def test_ranks_compare_which_gradients_go_together(two_ranks: RecordingOps) -> None:
    def structure(*names: str, **options: Any) -> Any:
        reducer = GradientReducer(make_settings("Tape"), **options)
        reducer.reduce(gradients(1.0, 2.0), variables(*names))
        return two_ranks.calls[-1].call.structure

    first = structure("dense/kernel", "dense/bias")
    assert first.text == "2 gradients 0.kernel, 1.bias"
    assert structure("dense_7/kernel", "dense_8/bias_3", numbered=True) == first
    assert structure("dense/bias", "dense/kernel").digest != first.digest


def test_generic_names_hold_neither_scope_nor_variable(two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape"))
    with tf.name_scope("outer"):
        reducer.reduce(gradients(1.0, 2.0), variables("a", "b"), generic_names=True)
    assert two_ranks.names == ["grad_0.and.1"]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_gradients_of_weight_0_do_not_count(two_ranks: RecordingOps, dtype: Any) -> None:
    reducer = GradientReducer(make_settings("Tape"))
    reducer.weight = tf.Variable(0.5)
    dense = tf.cast(tf.constant([4.0, float("nan")]), dtype)
    sparse = tf.IndexedSlices(tf.cast(tf.constant([2.0, float("inf")]), dtype), tf.constant([0, 1]))

    def sent() -> list[list[float]]:
        reduced = reducer.reduce([dense, sparse], variables("a", "b"))
        values = [getattr(gradient, "values", gradient) for gradient in reduced]
        return [[float(value) / REDUCED for value in each] for each in values]

    assert [values[0] for values in sent()] == [2.0, 1.0]
    reducer.weight.assign(0.0)
    assert sent() == [[0.0, 0.0], [0.0, 0.0]]


def test_optimizers_are_numbered_when_they_are_used(two_ranks: RecordingOps) -> None:
    def reducer() -> GradientReducer:
        return GradientReducer(make_settings("DistributedSGD"), numbered=True)

    first, _unused, second = reducer(), reducer(), reducer()
    for used in (first, second, first):
        used.reduce(gradients(1.0), variables("dense_7/kernel"))
    assert two_ranks.names == [
        "DistributedSGD_Allreduce.0.kernel",
        "DistributedSGD_Allreduce_2.0.kernel",
    ]


def test_local_gradients_are_divided_by_the_size(two_ranks: RecordingOps) -> None:
    shared, local, sparse = variables("shared", "local", "sparse")
    reducer = GradientReducer(make_settings("Tape"))
    reducer.register_local(local)
    reducer.register_local(sparse)
    rows = tf.IndexedSlices(tf.constant([8.0]), tf.constant([1]), tf.constant([2]))
    reduced = reducer.reduce([*gradients(1.0, 3.0), rows], [shared, local, sparse])
    assert first_values(reduced[:2]) == [REDUCED, 1.5]
    assert float(reduced[2].values[0]) == 4.0
    assert two_ranks.names == ["Tape_Allreduce/0.shared"]


def test_local_gradients_can_stay_as_they_are(two_ranks: RecordingOps) -> None:
    (local,) = variables("local")
    reducer = GradientReducer(make_settings("Tape", scale_local_gradients=False))
    reducer.register_local(local)
    assert first_values(reducer.reduce(gradients(3.0), [local])) == [3.0]


def test_a_keras_variable_is_the_variable_in_it(two_ranks: RecordingOps) -> None:
    inner = keras.Variable([1.0, 2.0], name="kernel")
    reducer = GradientReducer(make_settings("Tape"))
    reducer.register_local(inner)
    assert reducer.is_local(inner.value)


def test_small_gradients_go_together_but_for_sparse_ones(two_ranks: RecordingOps) -> None:
    named = [tf.Variable([[1.0], [2.0]], name=name) for name in "abc"]
    dense = tf.constant([[1.0], [2.0]])
    sparse = tf.IndexedSlices(dense[:1], tf.constant([0]), tf.constant([2, 1]))
    GradientReducer(make_settings("Tape")).reduce([dense, sparse, dense], named)
    assert two_ranks.names == ["Tape_Allreduce/0.a.and.1", "Tape_Allreduce/1.b"]
    two_ranks.names.clear()
    reducer = GradientReducer(make_settings("Other", sparse_as_dense=True))
    reducer.reduce([dense, sparse, dense], named)
    assert two_ranks.names == ["Other_Allreduce/0.a.and.2"]


def test_only_a_dense_operation_that_is_alone_is_waited_for(two_ranks: RecordingOps) -> None:
    def waits(groups: int | None, *given: Any) -> list[bool]:
        two_ranks.calls.clear()
        named = variables(*"abc"[: len(given)])
        GradientReducer(make_settings(f"Of{groups}", groups=groups)).reduce(list(given), named)
        return [asked.call.waits_briefly for asked in two_ranks.calls]

    sparse = tf.IndexedSlices(tf.constant([8.0]), tf.constant([0]), tf.constant([1]))
    assert waits(None, *gradients(1.0, 2.0, 3.0)) == [True]
    assert waits(3, *gradients(1.0, 2.0, 3.0)) == [False] * 3, "each would wait for the one before"
    assert waits(None, *gradients(1.0), sparse) == [False, False]
    assert waits(1, *gradients(1.0), sparse) == [False], "slices are several operations"


@pytest.mark.parametrize(("groups", "lengths"), [(2, [2, 1]), (1, [3]), (7, [1, 1, 1])])
def test_a_number_of_groups(two_ranks: RecordingOps, groups: int, lengths: list[int]) -> None:
    reducer = GradientReducer(make_settings("Tape", groups=groups))
    reduced = reducer.reduce([*gradients(1.0, 2.0), None, *gradients(4.0)], variables(*"abcd"))
    assert first_values(reduced) == [REDUCED, 2 * REDUCED, None, 4 * REDUCED]
    assert two_ranks.groups == lengths


def test_groups_of_variables_and_the_others_alone(two_ranks: RecordingOps) -> None:
    a, b, c, d = variables(*"abcd")
    reducer = GradientReducer(make_settings("Tape", groups=[[d, a]]))
    reduced = reducer.reduce(gradients(1.0, 2.0, 3.0, 4.0), [a, b, c, d])
    assert first_values(reduced) == [10.0, 20.0, 30.0, 40.0]
    assert two_ranks.names == [
        "Tape_Allreduce/3.d.and.1",
        "Tape_Allreduce/1.b",
        "Tape_Allreduce/2.c",
    ]


def test_the_average_is_divided_before_and_after(two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape", gradient_predivide_factor=4.0))
    sparse = tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([1]), tf.constant([2, 1]))
    reducer.reduce([*gradients(1.0), sparse], variables("a", "b"))
    scales = [(asked.reduction.prescale, asked.reduction.postscale) for asked in two_ranks.calls]
    assert scales == [(0.25, 4.0), (1.0, 1.0)], "the average of sparse ones needs no scaling"
    assert {asked.reduction.op for asked in two_ranks.calls} == {Average}


def test_sparse_gradients_become_dense_on_demand(two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape", sparse_as_dense=True))
    rows = tf.IndexedSlices(tf.constant([1.0, 2.0]), tf.constant([1, 1]), dense_shape=None)
    (reduced,) = reducer.reduce([rows], variables("table"))
    assert reduced.numpy().tolist() == [0.0, 3 * REDUCED]


def test_in_a_graph_the_scope_is_part_of_the_name(two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape"))
    (variable,) = variables("a")

    @tf.function(autograph=False)
    def step(gradient: Any) -> Any:
        with tf.name_scope("outer"):
            return reducer.reduce([gradient], [variable])

    assert first_values(step(*gradients(1.0))) == [REDUCED]
    assert two_ranks.names == ["outer/Tape_Allreduce/0.a"]


def test_autograph_rewrites_nothing_of_the_package(two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape"))
    (variable,) = variables("a")

    @tf.function
    def step(gradient: Any) -> Any:
        return reducer.reduce([gradient], [variable])

    assert first_values(step(*gradients(1.0))) == [REDUCED]
    assert {name for name in two_ranks.callers if name.startswith("tf__")} == {"tf__step"}


def test_eager_gradients_share_a_graph(two_ranks: RecordingOps) -> None:
    (variable,) = variables("a")
    for _ in range(3):
        GradientReducer(make_settings("Tape")).reduce(gradients(1.0), [variable])
    assert len(two_ranks.names) == 1, "traced once, also for another tape"


def test_ranks_outside_of_the_set_keep_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = pretend_two_ranks(monkeypatch, included=False)
    reducer = GradientReducer(make_settings("Tape"))
    a, local = variables("a", "local")
    reducer.register_local(local)
    assert first_values(reducer.reduce(gradients(1.0, 2.0), [a, local])) == [1.0, 2.0]
    assert recorder.names == []


def test_xla_is_refused(two_ranks: RecordingOps) -> None:
    reducer = GradientReducer(make_settings("Tape"))
    (variable,) = variables("a")

    @tf.function(autograph=False)
    def inner(gradient: Any) -> Any:
        return reducer.reduce([gradient], [variable])

    @tf.function(autograph=False, jit_compile=True)
    def step(gradient: Any) -> Any:
        return inner(gradient)

    with pytest.raises(UsageError, match="use jit_compile=False"):
        step(*gradients(1.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor needs"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor=0"),
        ({"groups": 0}, "groups=0 must be at least 1"),
        ({"groups": -1}, "groups=-1 must be at least 1"),
        ({"groups": "ab"}, "neither a number nor a list of lists"),
        ({"groups": [3]}, "neither a number nor a list of lists"),
        ({"op": 17}, "op=17 is no reduction"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_settings("Tape", **arguments)


def test_a_variable_in_two_groups_is_refused() -> None:
    (a,) = variables("a")
    with pytest.raises(UsageError, match="there twice"):
        make_settings("Tape", groups=[[a], [a]])


def test_num_groups_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="use groups"):
        assert make_settings("Tape", num_groups=3).groups == 3
