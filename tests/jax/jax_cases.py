"""What programs for JAX may do, and what they hear. A case is a function ``case(rank, size)``."""

from __future__ import annotations

import json
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import horovod.jax as hvd
from horovod._train.logged.call import flush_before_join
from horovod._train.logged.outlets import Outlets
from horovod.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)


def expect(kind: type[Exception], words: str, function: Callable[[], Any]) -> None:
    caught: Exception | None = None
    try:
        function()
    except kind as error:
        caught = error
    assert caught is not None, f"no {kind.__name__}"
    assert words in str(caught), caught


def logged_values_are_averaged(rank: int, size: int) -> None:
    written = []
    write, Outlets.write = Outlets.write, lambda _, step, values, __: written.append((step, values))
    try:
        array = jnp.float32(rank) + 1.5
        hvd.log(loss=array, rank=rank)
        hvd.log({"train/size": size}, weight=rank)
        expect(UsageError, "has the shape (2,)", lambda: hvd.log(loss=jnp.ones(2)))
        expect(UsageError, "while JAX traces", lambda: jax.jit(lambda x: hvd.log(x=x))(1.0))
        flush_before_join()
    finally:
        Outlets.write = write
    mean = (size - 1) / 2
    expected = [(0, {"loss": mean + 1.5, "rank": mean}), (0, {"train/size": size})]
    assert written == (expected if rank == 0 else [])


def norms_are_those_of_reduced_gradients(rank: int, size: int) -> None:
    params = {"w": jnp.arange(3.0)}
    rows = np.random.default_rng(0).normal(size=(size, 5, 3)).astype(np.float32)

    def loss_of(params: Any, x: Any) -> Any:
        return jnp.mean((x @ params["w"]) ** 2)

    _, grads = hvd.value_and_grad(loss_of)(params, rows[rank])
    alone = jax.grad(loss_of)(params, rows.reshape(-1, 3))
    expected = float(np.linalg.norm(np.asarray(alone["w"], dtype=np.float64)))
    for norm in (hvd.gradient_norm(grads), jax.jit(hvd.gradient_norm)(grads["w"])):
        np.testing.assert_allclose(float(norm), expected, rtol=1e-6)


def a_tree_of_all_dtypes_is_one_operation(rank: int, size: int) -> None:
    tree = {dtype: jnp.ones((2, 3), dtype) for dtype in DTYPES}
    for run in (hvd.allreduce, jax.jit(lambda t, op: hvd.allreduce(t, op=op), static_argnums=1)):
        got = run(tree, op=hvd.Sum) if run is hvd.allreduce else run(tree, hvd.Sum)
        for dtype, array in got.items():
            assert array.dtype.name == dtype
            assert (np.asarray(array).astype(int) == (1 if dtype == "bool" else size)).all(), dtype
    rows = jax.jit(hvd.allgather)(tree)
    assert {array.shape for array in rows.values()} == {(2 * size, 3)}
    mixed = hvd.allreduce([1.5, None, {"n": np.int32(rank)}, ()], op=hvd.Sum)
    assert (float(mixed[0]), mixed[1], int(mixed[2]["n"])) == (1.5 * size, None, sum(range(size)))
    assert hvd.allreduce({}) == {}


def _names_run(path: Path) -> list[str]:
    """Of rank 0, in the order in which they were submitted."""
    names: dict[int, str] = {}
    order = []
    for event in json.loads(path.read_text()):
        if event.get("pid") == 0 and event.get("name") == "thread_name":
            names[event["tid"]] = event["args"]["name"]
        if event.get("pid") == 0 and event.get("name") == "NEGOTIATE_ALLREDUCE":
            order.append(names[event["tid"]])
    return order


def independent_operations_run_in_the_order_of_the_program(rank: int, size: int) -> None:
    @jax.jit
    def program(x: Any) -> Any:
        square = x @ x.T
        return sum(
            hvd.allreduce(
                jnp.tanh(square * i) if i % 2 else square[: i + 1], op=hvd.Sum, name=f"g{i}"
            ).sum()
            for i in range(30)
        )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        for rows in (1, 300):
            hvd.start_timeline(str(path))
            program(jnp.ones((rows, 40))).block_until_ready()
            hvd.stop_timeline()
            if rank == 0:
                assert _names_run(path) == [f"allreduce.g{i}" for i in range(30)], rows


def uneven_batches_never_swap_names(rank: int, size: int) -> None:
    """Two metrics of the same shape; ranks trace again at different times."""

    @jax.jit
    def step(x: Any, number: Any) -> Any:
        loss = hvd.allreduce((x @ x.T).mean() * 0 + number)
        aux = hvd.allreduce(jnp.tanh(x).sum() * 0 - number)
        return loss, aux

    for number in range(1000):
        rows = 1 + (number + 7 * rank) % 5 if number % 250 > 200 else 6
        loss, aux = step(jnp.ones((rows, 3)), float(number))
    assert (float(loss), float(aux)) == (999.0, -999.0)


def what_cannot_be_sent_is_refused(rank: int, size: int) -> None:
    for wrong, words in (
        (jnp.ones(2, jnp.complex64), "complex64, which cannot be sent"),
        (jnp.ones(2, jnp.float8_e4m3fn), "float8_e4m3fn, which cannot be sent"),
        ({"a": {"b": "text"}}, "['a']['b'] is a str"),
        (jax.random.key(0), "jax.random.key_data"),
    ):
        expect(UsageError, words, lambda w=wrong: hvd.allreduce(w))
        expect(UsageError, words, lambda w=wrong: hvd.broadcast(w, 0))
    expect(UsageError, "give floating-point numbers", lambda: hvd.batch_statistics(jnp.arange(3)))
    expect(UsageError, "is no reduction", lambda: hvd.allreduce(jnp.ones(2), op=17))
    expect(UsageError, "sizes=[9]", lambda: hvd.allgather(jnp.ones(2), sizes=[9]))


def what_cannot_be_in_a_program_is_refused(rank: int, size: int) -> None:
    for function in (
        hvd.barrier, hvd.join, lambda: hvd.broadcast_object(1), lambda: hvd.allgather_object(1),
        lambda: hvd.check_in_sync({}), lambda: hvd.broadcast_parameters({}),
    ):  # fmt: skip
        expect(
            UsageError, "cannot be part of a jitted program",
            lambda f=function: jax.jit(lambda x: (f(), x)[1])(1.0),
        )  # fmt: skip
    splits = jnp.ones(size, jnp.int32)
    expect(
        UsageError, "must be known when the program is traced",
        lambda: jax.jit(lambda x, s: hvd.alltoall(x, s))(jnp.ones(2 * size), splits),
    )  # fmt: skip
    uneven = jnp.ones(2 + rank)
    expect(
        Exception, "within jit all ranks give equal numbers of rows",
        lambda: jax.block_until_ready(jax.jit(hvd.allgather)(uneven)),
    )  # fmt: skip


def state_comes_from_the_root(rank: int, size: int) -> None:
    inner = optax.adam(0.1)
    tree = {
        "w": np.full(3, float(rank)), "key": jax.random.key(rank), "step": 5 + rank, "none": None,
        "name": f"of {rank}", "state": inner.init({"w": jnp.full(3, float(rank))}), "f": len,
    }  # fmt: skip
    got = hvd.broadcast_parameters(tree, root_rank=size - 1)
    last = size - 1
    assert (got["step"], got["name"], got["none"], got["f"]) == (5 + last, f"of {last}", None, len)
    assert type(got["step"]) is int
    np.testing.assert_array_equal(got["w"], float(last))
    assert (jax.random.key_data(got["key"]) == jax.random.key_data(jax.random.key(last))).all()
    hvd.check_in_sync(got)
    other = {"same": jnp.ones(2), "differs": jnp.ones(2 + rank)}
    expect(MismatchError, "differs", lambda: hvd.broadcast_parameters(other))


def trees_that_differ_are_named(rank: int, size: int) -> None:
    """All of them have arrays of the same shapes at the same places."""
    one, two = jnp.ones(2), jnp.full(2, 2.0)
    runs = (
        hvd.allreduce, hvd.allgather, hvd.reducescatter, lambda tree: hvd.broadcast(tree, 0),
        jax.jit(hvd.allreduce), hvd.reduce_gradients, hvd.value_and_grad(_sum_of_leaves),
    )  # fmt: skip
    for number, (first, second) in enumerate((
        ({"a": one, "b": two}, {"0": one, "a": two}),
        ([None, one, two], [one, None, two]),
        ([one, two], {"0": one, "1": two}),
        (OrderedDict(a=one, b=two), OrderedDict(b=one, a=two)),
    )):  # fmt: skip
        mine, theirs = (first, second) if rank == 0 else (second, first)
        for run in runs if number == 0 else runs[:1]:
            text = _text_of_error(MismatchError, lambda r=run, t=mine: hvd.synchronize(_run(r, t)))
            for tree in (mine, theirs):
                pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
                paths = ", ".join(jax.tree_util.keystr(path) for path, _ in pairs)
                assert f"with 2 leaves {paths}" in text, text
            assert all(f"rank {each}" in text for each in range(2)), text


def _sum_of_leaves(tree: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves(tree))


def _text_of_error(kind: type[Exception], function: Callable[[], Any]) -> str:
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def integers_of_numpy_are_not_cut(rank: int, size: int) -> None:
    jax.config.update("jax_enable_x64", False)
    try:
        large = 3_000_000_000
        tree = {"n": np.full(2, large + rank), "u": np.full(2, 2**63, "uint64"), "w": jnp.ones(2)}
        got = hvd.allreduce(tree, op=hvd.Max)
        assert (got["n"].tolist(), got["u"].tolist()) == ([large + size - 1] * 2, [2**63] * 2)
        assert (got["n"].dtype, got["w"].dtype) == (np.int64, jnp.float32)
        assert hvd.allreduce(np.int64(large), op=hvd.Sum) == size * large
        assert hvd.allgather(tree)["n"].tolist() == [large + r for r in range(size) for _ in "ab"]
        assert hvd.broadcast(tree, 1)["n"].tolist() == [large + 1] * 2
        for wrong in (np.int64(large), np.array([-large]), np.uint32(1) + np.uint64(2**32)):
            expect(UsageError, "would cut", lambda w=wrong: jax.jit(lambda: hvd.allreduce(w))())
        for wrong in (large, np.float64(1e300)):
            expect(UsageError, "would cut", lambda w=wrong: hvd.allreduce(w))
        assert float(hvd.allreduce(np.float64("inf"))) == float("inf")
        state = {
            "step": np.int64(large + rank), "count": np.array(large + rank),
            "mean": np.array([1e300 + rank, 0.1]),
            "none": np.zeros((0, 3)), "key": np.uint64(2**63 + rank), "phase": jnp.ones(2) * 1j,
            "small": jnp.ones(2, jnp.float8_e4m3fn), "wide": np.full(1, 1e-300j * rank),
        }  # fmt: skip
        got = hvd.broadcast_parameters(state, root_rank=1)
        assert (got["step"], got["key"]) == (large + 1, 2**63 + 1)
        assert (got["mean"].tolist(), got["wide"].tolist()) == ([1e300 + 1, 0.1], [1e-300j])
        for name, value in state.items():
            assert (type(got[name]), np.shape(got[name])) == (type(value), np.shape(value)), name
    finally:
        jax.config.update("jax_enable_x64", True)


def what_keeps_an_order_of_its_own_is_broadcast_by_its_paths(rank: int, size: int) -> None:
    pairs = [("a", np.zeros(1) + rank), ("b", jnp.ones(1) + rank), ("n", rank), ("m", "x")]
    got = hvd.broadcast_parameters(OrderedDict(pairs if rank == 0 else pairs[::-1]))
    assert {name: np.sum(got[name]) if name != "m" else "x" for name in got} == {
        "a": 0.0, "b": 1.0, "n": 0, "m": "x"
    }  # fmt: skip
    objects = np.array([len], dtype=object)
    expect(
        UsageError, "['f'] is an array of Python", lambda: hvd.broadcast_parameters({"f": objects})
    )


def a_weight_may_be_computed(rank: int, size: int) -> None:
    mean = jax.jit(lambda x: hvd.allreduce(x, weight=jnp.abs(x).sum()))
    got = mean(jnp.full(2, 1.0 + rank))
    expected = sum((1 + r) ** 2 for r in range(size)) / sum(1 + r for r in range(size))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def a_failed_program_says_what_differs_and_others_go_on(rank: int, size: int) -> None:
    program = jax.jit(lambda x: hvd.allreduce(x, name="wrong") * 2)
    expect(
        MismatchError, f"float64 [{3 + rank}]",
        lambda: hvd.synchronize(_run(program, jnp.ones(3 + rank))),
    )  # fmt: skip
    np.testing.assert_array_equal(program(jnp.ones(2)), 2.0)


def _run(program: Any, x: Any) -> Any:
    from horovod.jax.errors import in_our_words

    with in_our_words():
        return program(x)


CASES: tuple[Callable[[int, int], None], ...] = (
    logged_values_are_averaged,
    norms_are_those_of_reduced_gradients,
    a_tree_of_all_dtypes_is_one_operation,
    independent_operations_run_in_the_order_of_the_program,
    uneven_batches_never_swap_names,
    what_cannot_be_sent_is_refused,
    what_cannot_be_in_a_program_is_refused,
    state_comes_from_the_root,
    trees_that_differ_are_named,
    integers_of_numpy_are_not_cut,
    what_keeps_an_order_of_its_own_is_broadcast_by_its_paths,
    a_weight_may_be_computed,
    a_failed_program_says_what_differs_and_others_go_on,
)
