"""What libraries find in horovod.common and in the mpi_ops of the adapters does what it says."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf
import torch
from thread_ranks import run_ranks

import horovod.tensorflow as tf_hvd
import horovod.torch as hvd
from horovod.common import util
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow import util as tf_util


def test_lists_are_cut_as_ever() -> None:
    assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]


def test_powers_of_two() -> None:
    assert [n for n in range(-1, 10) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert hvd.mpi_ops.check_num_rank_power_of_2(16)


def _fail_if_set(*names: str) -> None:
    assert [os.environ[name] for name in names] == ["inside"] * len(names)
    raise KeyError


def test_variables_are_set_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "before")
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(KeyError), util.env(THERE="inside", NOT_THERE="inside", NOTHING=None):
        _fail_if_set("THERE", "NOT_THERE")
    assert os.environ["THERE"] == "before"
    assert "NOT_THERE" not in os.environ


def test_questions_about_the_build_take_verbose() -> None:
    assert util.extension_available("torch", verbose=True)
    assert util.extension_available("tensorflow")
    assert not util.extension_available("mxnet")  # which has an environment of its own
    assert util.gloo_built(verbose=True)
    assert not util.ddl_built(verbose=True)
    assert not util.ccl_built(verbose=True)
    assert util.nccl_built(verbose=True) == (hvd.nccl_built() > 0)
    assert util.mpi_built(verbose=True) == hvd.mpi_built()
    # Those of TensorFlow go through host memory.
    assert not util.gpu_available("tensorflow")
    assert util.gpu_available("torch") == (hvd.cuda_built() or hvd.rocm_built())
    assert (util.cuda_built(), util.rocm_built()) == (hvd.cuda_built(), hvd.rocm_built())


def test_basics_answer_as_the_functions_do() -> None:
    basics = HorovodBasics(__file__, "mpi_lib")
    assert not basics.is_initialized()
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        basics.rank()
    hvd.init()
    try:
        for each in (basics, hvd.mpi_ops._basics, tf_hvd.mpi_ops._basics):
            assert each.is_initialized()
            assert (each.rank(), each.size(), each.local_rank(), each.cross_size()) == (0, 1, 0, 1)
            assert each.is_homogeneous()
    finally:
        basics.shutdown()
    assert not hvd.is_initialized()


def test_an_interrupt_can_be_caught() -> None:
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        raise HostsUpdatedInterrupt(True)
    assert caught.value.skip_sync
    assert not isinstance(caught.value, HorovodInternalError)


def test_the_older_flag_of_reductions() -> None:
    resolve = hvd.mpi_ops.handle_average_backwards_compatibility
    assert resolve(None, None) == hvd.Average
    assert resolve(hvd.Sum, None) == hvd.Sum
    with pytest.warns(DeprecationWarning, match="average"):
        assert resolve(None, False) == hvd.Sum
    with pytest.raises(ValueError, match="both"):
        resolve(hvd.Sum, True)


def test_the_operations_of_mpi_ops_are_those_of_the_adapter() -> None:
    def rank(_: int) -> list[float]:
        return [float(value) for value in hvd.mpi_ops.allreduce(torch.ones(2), op=hvd.mpi_ops.Sum)]

    assert run_ranks(2, rank) == [[2.0, 2.0], [2.0, 2.0]]


def test_the_plain_allreduce_of_tensorflow_sums() -> None:
    tf_hvd.init()
    try:
        tensor = tf.constant([1.0, 2.0])
        total = tf_hvd.mpi_ops._allreduce(tensor, name="plain", prescale_factor=2.0)
        assert total.numpy().tolist() == [2.0, 4.0]
        assert tf_hvd.mpi_ops._allreduce(tensor, "plain", tf_hvd.Max).numpy().tolist() == [1, 2]
    finally:
        tf_hvd.shutdown()


def test_references_lead_back_to_their_variables() -> None:
    first, second = tf.Variable(1.0), tf.Variable(2.0)
    refs = tf_util.vars_to_refs([first, (second,)])
    assert hash(refs) == hash(tf_util.vars_to_refs([first, (second,)]))
    found, (inner,) = tf_util.refs_to_vars(refs)
    assert found is first
    assert inner is second


def test_cached_functions_run_once_and_subgraphs_are_traced_once() -> None:
    calls: list[int] = []

    @tf_util._cache
    def cached(value: int) -> int:
        calls.append(value)
        return value + 1

    @tf_util._make_subgraph
    def subgraph(tensor: tf.Tensor) -> tf.Tensor:
        calls.append(0)
        assert not tf_util._executing_eagerly()
        return tensor + 1.0

    assert [cached(1), cached(1), cached(2)] == [2, 2, 3]
    assert calls == [1, 2]
    assert [float(subgraph(tf.constant(1.0))) for _ in range(2)] == [2.0, 2.0]
    assert calls == [1, 2, 0]
    assert tf_util._executing_eagerly()
