"""torchrun starts Horovod's jobs, and horovodrun those of torch.distributed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster, entered, why_not
from launcher import environment, free_port
from ssh_hosts import SshHosts
from ssh_hosts import why_not as why_no_ssh

pytest.importorskip("torch.distributed.run")
pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
STARTED = [str(HERE / "started_rank.py"), "none"]
TORCH = str(HERE / "torch_rank.py")
PATIENT = {"HOROVOD_START_TIMEOUT": "90", "OMP_NUM_THREADS": "1"}
DEADLINE_S = 180.0

needs_hosts = pytest.mark.skipif(bool(why_not()), reason=why_not())
needs_ssh = pytest.mark.skipif(bool(why_no_ssh()), reason=why_no_ssh())

ONE_HOST = [f"rank {rank}/2 local {rank}/2 cross 0/1 sum 3.0" for rank in (0, 1)]
TWO_HOSTS = [f"rank {rank}/2 local 0/1 cross {rank}/2 sum 3.0" for rank in (0, 1)]


class Started:
    """A process that must end well."""

    def __init__(self, words: Sequence[str], **env: str) -> None:
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(**{**PATIENT, **env}),
            text=True,
        )

    def lines(self) -> list[str]:
        """What its ranks said, in order."""
        try:
            text, _ = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
        assert self.process.returncode == 0, text
        found = [line[line.index("rank ") :] for line in text.splitlines() if "rank " in line]
        return sorted(line for line in found if line.split("/")[0].removeprefix("rank ").isdigit())


def torchrun(*words: str, **env: str) -> Started:
    return Started([sys.executable, "-m", "torch.distributed.run", *words], **env)


def horovodrun(*words: str, **env: str) -> Started:
    return Started([sys.executable, "-m", "horovod.runner.cli", *words], **env)


@pytest.fixture
def port() -> Iterator[int]:
    with free_port() as port:
        yield port


def two_nodes(address: str, port: int) -> list[str]:
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{port}"]
    return ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "job", *meeting]


def test_two_jobs_at_once_on_one_host(tmp_path: Path) -> None:
    words = ["--standalone", "--nproc-per-node", "2", *STARTED]
    jobs = [torchrun(*words, HOME=str(tmp_path)) for _ in range(2)]
    assert [job.lines() for job in jobs] == [ONE_HOST, ONE_HOST]
    assert not list(tmp_path.glob(".horovod*"))  # they met without a file


def test_two_agents_on_one_host(port: int) -> None:
    words = two_nodes("127.0.0.1", port)
    agents = [torchrun(*words, *STARTED) for _ in range(2)]
    assert sorted(agents[0].lines() + agents[1].lines()) == ONE_HOST


@needs_hosts
@pytest.mark.parametrize("secret", ["", "5e" * 32])
def test_two_hosts(secret: str) -> None:
    agents = []
    with Cluster(2) as cluster:
        words = two_nodes(cluster.hosts[0].address, 29400)
        for host in cluster.hosts:
            with entered(host.namespace):
                # Both hosts have the name of this machine, by which torchrun would decide.
                leads = f"is_host={int(host is cluster.hosts[0])}"
                named = [*words, "--rdzv-conf", leads, "--local-addr", host.address, *STARTED]
                agents.append(torchrun(*named, HOROVOD_SECRET_KEY=secret))
        assert sorted(agents[0].lines() + agents[1].lines()) == TWO_HOSTS


def test_a_restart_makes_new_engines() -> None:
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    lines = torchrun(*words, "--monitor-interval", "0.1", TORCH, "dies").lines()
    assert lines == [f"rank {rank}/2 attempt 1 sum 3" for rank in (0, 1)]


def await_processes(folder: Path, size: int, others: set[Path]) -> set[Path]:
    """Wait until all ranks of a new generation of a size have summed; return their files."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        found = set(folder.glob(f"{size}.*")) - others
        if len(found) == size:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no generation of {size}: {sorted(folder.iterdir())}")


def test_an_agent_joins_and_leaves(tmp_path: Path, port: int) -> None:
    """Each change ends the engines of the old ranks, and makes those of new ones."""
    words = ["--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-id", "job", "--max-restarts", "9"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    words += ["--monitor-interval", "0.1", "--local-addr", "127.0.0.1"]
    script = [TORCH, "elastic", str(tmp_path)]
    # Otherwise an agent that joins waits in vain for the address that others found before.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    leads = "is_host=1,last_call_timeout=1"
    first = torchrun(*words, "--rdzv-conf", leads, *script, **own_store)
    with ExitStack() as stack:
        stack.callback(first.process.kill)
        alone = await_processes(tmp_path, 1, set())
        follows = "is_host=0,last_call_timeout=1"
        second = torchrun(*words, "--rdzv-conf", follows, *script, **own_store)
        stack.callback(second.process.kill)
        await_processes(tmp_path, 2, set())
        second.process.terminate()
        await_processes(tmp_path, 1, alone)
        (tmp_path / "enough").touch()
        assert first.lines() == ["rank 0/1 ended"]
        second.process.communicate(timeout=DEADLINE_S)
        assert second.process.returncode != 0


def test_variables_without_torchrun(port: int) -> None:
    """Rank 0 opens the store of PyTorch, and init_process_group finds the same one."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # as two pods on one host
    ranks = [
        Started([sys.executable, TORCH, "both"], **master, **local, RANK=str(rank))
        for rank in range(2)
    ]
    lines = sorted(ranks[0].lines() + ranks[1].lines())
    assert [line for line in lines if " local " not in line] == [
        "rank 0/2 sum 3",
        "rank 1/2 sum 3",
    ]


def test_horovod_and_gloo_under_torchrun() -> None:
    lines = torchrun("--standalone", "--nproc-per-node", "2", TORCH, "both").lines()
    assert lines == [
        line
        for rank in (0, 1)
        for line in (f"rank {rank}/2 local {rank}/2 gloo 3", f"rank {rank}/2 sum 3")
    ]


def test_spawned_processes_meet_over_a_file(tmp_path: Path) -> None:
    lines = Started([sys.executable, TORCH, "spawn", str(tmp_path / "store")]).lines()
    assert lines == [f"rank {rank}/2 sum 3 at 127.0.0.1" for rank in (0, 1)]


def test_horovodrun_sets_what_gloo_needs_also_for_two_jobs_at_once() -> None:
    words = ["-np", "2", sys.executable, TORCH, "gloo"]
    jobs = [horovodrun(*words) for _ in range(2)]
    for job in jobs:
        assert job.lines() == [f"rank {rank}/2 local {rank}/2 gloo 3" for rank in (0, 1)]


def test_variables_of_the_user_stay() -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]
    show = f"import os; print('rank 0/', *map(os.environ.get, {names}))"
    words = ["-np", "1", sys.executable, "-c", show]
    assert horovodrun(*words, MASTER_PORT="12345").lines() == ["rank 0/ 0 1 0 127.0.0.1 12345"]
    assert horovodrun(*words, RANK="7").lines() == ["rank 0/ 7 None None None None"]
    nested = horovodrun(
        *("-np", "1", sys.executable, "-m", "horovod.runner.cli", "-np", "1", *words[2:]),
        MASTER_ADDR="",
    )
    (line,) = nested.lines()
    assert line.startswith("rank 0/ 0 1 0 127.0.0.1 ")


@needs_ssh
@pytest.mark.parametrize("order", ["host0:1,host1:1", "host1:1,host0:1"])
def test_horovodrun_sets_what_gloo_needs_on_two_hosts(order: str, tmp_path: Path) -> None:
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path) as hosts, ExitStack() as stack:
        stack.enter_context(entered(cluster.hosts[0].namespace))
        env = {**hosts.environment, "GLOO_SOCKET_IFNAME": "eth0"}
        job = horovodrun("-np", "2", "-H", order, sys.executable, TORCH, "gloo", **env)
        assert job.lines() == [f"rank {rank}/2 local 0/1 gloo 3" for rank in (0, 1)]
    assert os.environ.get("MASTER_PORT") is None
