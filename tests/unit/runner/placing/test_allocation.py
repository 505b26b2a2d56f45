"""The hosts of a batch system's allocation."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.errors import UsageError
from horovod.runner.placing.allocation import expand_counts, expand_hosts, find_allocated_hosts
from horovod.runner.placing.hosts import Host


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("node[1-3,7]", ["node1", "node2", "node3", "node7"]),
        ("gpu[08-11]-ib,c.x", ["gpu08-ib", "gpu09-ib", "gpu10-ib", "gpu11-ib", "c.x"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("a,b[2],c", ["a", "b2", "c"]),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,,b",
        "a[",
        "a[1-",
        "a[]",
        "a[x]",
        "a[2-1]",
        "a]b",
        "[[1]",
        "a[1]]",
        "a[1][",
        "-a",
        "a b",
        "a[1-999999999]",
    ],
)
def test_lists_of_hosts_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST="):
        expand_hosts(text)


def test_lists_of_numbers() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "x", "2(x", "2,,1", "0", "1(x9999999)"):
        with pytest.raises(UsageError, match="SLURM_TASKS_PER_NODE="):
            expand_counts(text)


@given(st.text(alphabet="ab1-9[],.", max_size=30))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        names = expand_hosts(text)
        assert names
        assert all(name and "[" not in name for name in names)


def test_the_hosts_of_slurm_and_lsf() -> None:
    slurm = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),1"}
    assert find_allocated_hosts(slurm) == [Host("n1", 4), Host("n2", 4), Host("n3", 1)]
    equal = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS_PER_NODE": "8"}
    assert find_allocated_hosts(equal) == [Host("n1", 8), Host("n2", 8)]
    assert find_allocated_hosts({"SLURM_JOB_NODELIST": "n1"}) == [Host("n1", 1)]
    lsf = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 2 b 4 "}
    assert find_allocated_hosts(lsf) == [Host("a", 2), Host("b", 4)]
    assert find_allocated_hosts({}) == []


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "1(x2)"}, "3 hosts, but"),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 2 b"}, "LSB_MCPU_HOSTS='a 2 b'"),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a b"}, "LSB_MCPU_HOSTS='a b'"),
    ],
)
def test_allocations_that_contradict_themselves(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_allocated_hosts(environ)
