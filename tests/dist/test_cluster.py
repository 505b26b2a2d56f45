"""Jobs between hosts, which are network namespaces of this machine."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cluster_rank
import pytest
import torch
from cluster import Cluster, ClusterError, remove_leftovers, why_not
from torch_training import RECIPES, check_equal, train_alone

if TYPE_CHECKING:
    from cluster_job import Outcome

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

GOOD_RANK = [sys.executable, str(Path(__file__).with_name("cluster_rank.py"))]
FAULTY_RANK = [sys.executable, str(Path(__file__).with_name("cluster_faults.py"))]
MANY = str(16 * 1024 * 1024)  # 64 MiB
FEW = "1"
# Eight ranks that load torch on two busy cores take their time.
PATIENT = {"HOROVOD_START_TIMEOUT": "90"}
PATIENT_S = 120.0


# -- the network itself


def namespaces(pid: int) -> set[str]:
    """Those that a process made."""
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return {name for name in shown.split() if name.startswith(f"hvd{pid}-")}


def test_nothing_is_left_of_a_cluster() -> None:
    with pytest.raises(ZeroDivisionError), Cluster(2):  # noqa: PT012
        assert len(namespaces(os.getpid())) == 3  # a switch and two hosts
        raise ZeroDivisionError
    assert not namespaces(os.getpid())


def test_nothing_is_left_of_a_cluster_that_cannot_be_made() -> None:
    with pytest.raises(ClusterError, match=r"tc .* rate infmbit"):
        Cluster(2, rate_mbit=math.inf)
    assert not namespaces(os.getpid())


def test_leftovers_of_a_dead_process_are_removed() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    subprocess.run(["ip", "netns", "add", f"hvd{gone.pid}-0-h0"], check=True)
    assert namespaces(gone.pid)
    remove_leftovers()
    assert not namespaces(gone.pid)


def test_ranks_know_their_places_and_a_failing_rank_ends_the_others() -> None:
    script = "echo $HOROVOD_HOSTNAME $HOROVOD_LOCAL_RANK $HOROVOD_CROSS_SIZE; "
    with Cluster(2) as cluster:
        outcome = cluster.run(2, ["sh", "-c", script])
        began_s = time.monotonic()
        failed = cluster.run(1, ["sh", "-c", "[ $HOROVOD_RANK = 1 ] && exit 3; exec sleep 1000"])
    assert sorted(outcome.check().lines) == [
        "[0]<stdout>:host0 0 2",
        "[1]<stdout>:host0 1 2",
        "[2]<stdout>:host1 0 2",
        "[3]<stdout>:host1 1 2",
    ]
    assert failed.codes == (-15, 3)
    assert time.monotonic() - began_s < 50, "the deadline is 60 s"


# -- jobs that end well


@pytest.mark.parametrize("ranks_per_host", [1, 2])
@pytest.mark.parametrize("num_hosts", [2, 4])
def test_collectives_between_hosts(num_hosts: int, ranks_per_host: int) -> None:
    with Cluster(num_hosts) as cluster:
        words = [*GOOD_RANK, "collectives"]
        outcome = cluster.run(ranks_per_host, words, PATIENT, PATIENT_S).check()
    assert outcome.output.count("all equal") == num_hosts * ranks_per_host


@pytest.fixture(name="trained", scope="module")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What two ranks on two hosts have trained, by what it is."""
    folder = tmp_path_factory.mktemp("trained")
    with Cluster(2) as cluster:
        cluster.run(1, [*GOOD_RANK, "training", str(folder)], PATIENT, PATIENT_S).check()
    return {
        what: [torch.load(folder / f"{what}.{rank}.pt") for rank in range(2)]
        for what in ("digits", "recipes")
    }


def test_digits_on_two_hosts_is_one_process_with_all_data(trained: dict[str, list[Any]]) -> None:
    model = cluster_rank.make_digits()[0]
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    alone = cluster_rank.train_digits(model, plain, 0, 2, num_shares=2)
    check_equal(trained["digits"], alone, 1e-9)
    start = cluster_rank.make_digits()[0].parameters()
    assert not any(torch.equal(a, b) for a, b in zip(start, alone, strict=True)), "nobody learned"


@pytest.mark.parametrize("name", RECIPES)
def test_training_between_hosts_is_one_process_with_all_data(
    name: str, trained: dict[str, list[Any]]
) -> None:
    recipe, tolerance = RECIPES[name]
    check_equal([mine[name] for mine in trained["recipes"]], train_alone(2, recipe), tolerance)


# -- hosts and ranks that are lost


def errors_of(outcome: Outcome) -> dict[int, tuple[float, str]]:
    """By rank, when which error came."""
    errors = re.findall(r"\[(\d+)\]<stdout>:error ([\d.]+) (.*)", outcome.output)
    return {int(rank): (float(at), text) for rank, at, text in errors}


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_a_rank_that_dies_in_an_allreduce_is_named_on_all_hosts(ranks_per_host: int) -> None:
    culprit = ranks_per_host  # the first rank of the second host
    with Cluster(3, rate_mbit=200) as cluster:
        outcome = cluster.run(ranks_per_host, [*FAULTY_RANK, "killed", str(culprit), MANY])
    fault = re.search(r"fault ([\d.]+)", outcome.output)
    assert fault, outcome.output
    errors = errors_of(outcome)
    assert sorted([*errors, culprit]) == list(range(3 * ranks_per_host)), outcome.output
    for at_s, text in errors.values():
        assert re.match(rf"PeerLostError: .*rank {culprit} \(host1:\d+\)", text), text
        assert at_s - float(fault[1]) < 2.0


@pytest.mark.parametrize("num_elements", [FEW, MANY])
def test_a_host_that_vanishes_without_a_word_is_named(num_elements: str) -> None:
    """Its link goes down: neither an end nor a reset of a connection comes from it."""
    silence_s = 5
    with Cluster(3, rate_mbit=2000) as cluster:
        words = [*FAULTY_RANK, "cut", num_elements, str(silence_s)]
        with cluster.start(1, words) as job:
            job.wait_lines("reducing", 3, timeout_s=PATIENT_S)
            begun_s = time.monotonic()
            cluster.cut(1)
            cut_s = time.monotonic()
            outcome = job.wait(deadline_s=30.0)
    errors = errors_of(outcome)
    assert sorted(errors) == [0, 1, 2], outcome.output
    for rank, (at_s, text) in errors.items():
        lost = r"rank 1 \(host1:\d+\)" if rank != 1 else r"rank [02] \(host[02]:\d+\)"
        assert re.match(f"PeerLostError: .*{lost} was lost", text), text
        # Something may have been heard before the cut, or a little after it.
        assert begun_s + silence_s - 1 < at_s < cut_s + silence_s + 2


def test_a_stopped_rank_is_not_a_lost_host() -> None:
    words = [*FAULTY_RANK, "paused", str(1024 * 1024), "5"]
    with Cluster(2, rate_mbit=2000) as cluster, cluster.start(1, words) as job:
        job.wait_lines("reducing", 2, timeout_s=PATIENT_S)
        job.processes[1].send_signal(signal.SIGSTOP)
        # What is waited for is that nothing happens, for longer than a host may be silent.
        with pytest.raises(TimeoutError):
            job.wait_lines("error", 1, timeout_s=6.5)
        job.processes[1].send_signal(signal.SIGCONT)
        job.processes[0].send_signal(signal.SIGUSR1)
        outcome = job.wait(deadline_s=30.0)
    assert outcome.codes == (0, 0), outcome.output
