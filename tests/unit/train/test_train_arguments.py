"""The argument rules, names and arithmetic that all adapters share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thread_ranks import run_ranks

import horovod
from horovod._rank.libraries import gpu
from horovod._rank.reduction import ReduceOp
from horovod._train import capabilities
from horovod._train.call_site import call_site
from horovod._train.gradients import GradientSchedule, split_list
from horovod._train.process_set import global_process_set
from horovod._train.reduce_op import resolve_reduce_op
from horovod.errors import UsageError


def test_the_default_reduction_is_average() -> None:
    assert resolve_reduce_op(None) is ReduceOp.AVERAGE


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT])
def test_a_reduction_may_be_given_by_number(op: ReduceOp) -> None:
    assert resolve_reduce_op(int(op)) is op


@pytest.mark.parametrize(("average", "op"), [(True, ReduceOp.AVERAGE), (False, ReduceOp.SUM)])
def test_average_is_deprecated(average: bool, op: ReduceOp) -> None:
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert resolve_reduce_op(None, average) is op


def test_op_and_average_together_are_refused() -> None:
    with pytest.raises(UsageError, match="both given"):
        resolve_reduce_op(ReduceOp.SUM, False)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(UsageError, match="op=42"):
        resolve_reduce_op(42)


@given(st.lists(st.integers(), max_size=40), st.integers(1, 12))
def test_split_list_cuts_evenly(items: list[int], num_parts: int) -> None:
    parts = split_list(items, num_parts)
    lengths = [len(part) for part in parts]
    assert len(parts) == num_parts
    assert [item for part in parts for item in part] == items
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


def test_a_group_leaves_when_its_last_member_is_due() -> None:
    schedule: GradientSchedule[str] = GradientSchedule(passes=2)
    schedule.add_group("ab")
    schedule.add_group("c")
    assert schedule.arrived("a") == ()
    assert schedule.arrived("a") == ()
    assert schedule.arrived("c") == ()
    assert schedule.arrived("c") == ("c",)
    assert schedule.arrived("b") == ()
    assert schedule.arrived("b") == ("a", "b")
    assert schedule.take_missing() == []


def test_what_did_not_leave_is_missing_once() -> None:
    schedule: GradientSchedule[str] = GradientSchedule(passes=1)
    schedule.add_group("ab")
    schedule.add_group("c")
    assert schedule.arrived("a") == ()
    assert schedule.take_missing() == [("a", "b"), ("c",)]
    assert schedule.take_missing() == []
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        schedule.arrived("b")


def test_one_pass_too_many_is_refused_until_the_next_step() -> None:
    schedule: GradientSchedule[str] = GradientSchedule(passes=1)
    schedule.add_group("a")
    schedule.arrived("a")
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        schedule.arrived("a")
    schedule.reset(passes=2)
    assert schedule.arrived("a") == ()
    assert schedule.arrived("a") == ("a",)


def test_passes_must_be_positive() -> None:
    with pytest.raises(UsageError, match="backward_passes_per_step=0"):
        GradientSchedule(passes=0)


def test_the_call_site_is_outside_of_the_package() -> None:
    # Its own frame does not count: it stands for a function of the adapter.
    def inner() -> str:
        return call_site()

    assert inner().startswith(f"{__file__}:")


def test_the_global_process_set_knows_its_ranks_after_init() -> None:
    assert (global_process_set.process_set_id, global_process_set.ranks) == (0, None)

    def body(rank: int) -> None:
        assert global_process_set.ranks == [0, 1]
        assert global_process_set.rank() == rank
        assert global_process_set.size() == 2

    run_ranks(2, body)


def test_older_scripts_hear_that_the_job_works_without_mpi() -> None:
    assert capabilities.gloo_enabled()
    assert capabilities.gloo_built()
    assert not capabilities.mpi_enabled()
    for built in ("ddl_built", "ccl_built"):
        assert getattr(capabilities, built)() is False
    with pytest.raises(ValueError, match="not been initialized"):
        capabilities.mpi_threads_supported()


def test_what_is_built_is_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "horovod._rank.libraries.gpu.find_driver", lambda given: gpu.Search(None, "none")
    )
    monkeypatch.setattr(
        "horovod._rank.libraries.gpu.find_nccl", lambda given: gpu.Search(None, "none")
    )
    assert capabilities.nccl_built() == 0
    assert capabilities.cuda_built() is capabilities.rocm_built() is False
    cuda = gpu.Driver("/lib/libcuda.so.1", 12080, 1)
    nccl = gpu.Nccl("/lib/libnccl.so.2", 22703, "")
    monkeypatch.setattr(
        "horovod._rank.libraries.gpu.find_driver", lambda given: gpu.Search(cuda, "")
    )
    monkeypatch.setattr("horovod._rank.libraries.gpu.find_nccl", lambda given: gpu.Search(nccl, ""))
    assert capabilities.nccl_built() == 22703
    assert (capabilities.cuda_built(), capabilities.rocm_built()) == (True, False)
    hip = gpu.Driver("/opt/rocm/lib/libamdhip64.so.6", 60000, 1)
    monkeypatch.setattr(
        "horovod._rank.libraries.gpu.find_driver", lambda given: gpu.Search(hip, "")
    )
    assert (capabilities.cuda_built(), capabilities.rocm_built()) == (False, True)


def test_nothing_shared_loads_a_framework() -> None:
    modules = [path.stem for path in (Path(horovod.__file__).parent / "train").glob("[a-z]*.py")]
    program = (
        f"import sys, importlib\n"
        f"for name in {modules}: importlib.import_module('horovod._train.' + name)\n"
        "found = {'torch', 'tensorflow', 'jax', 'numpy'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
