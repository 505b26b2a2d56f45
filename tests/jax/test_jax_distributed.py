"""``jax.distributed.initialize()`` finds the ranks of horovodrun, on one host and on several."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from cluster import Cluster
from environments import said_by
from ssh_hosts import SshHosts, why_not

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from environments import Environment

SCRIPT = "jax_distributed_rank.py"


def test_jax_finds_the_ranks_of_two_jobs_at_once(run_ranks: Callable[..., Any]) -> None:
    with ThreadPoolExecutor(2) as threads:
        jobs = [*threads.map(lambda value: run_ranks(2, SCRIPT, value), (1, 10))]
    for job, total in zip(jobs, (3, 21), strict=True):
        assert job.returncode == 0, job.stdout + job.stderr
        for rank in range(2):
            assert f"process {rank}/2 sum {total}" in said_by(job, rank)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_jax_finds_the_ranks_of_two_hosts(
    environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = (str(environment.python), str(environment.folder / SCRIPT), "1")
    folder: Path = tmp_path_factory.mktemp("ssh")
    with Cluster(2) as cluster, SshHosts(cluster, folder) as hosts:
        job = hosts.horovodrun("-np", "2", "-H", "host0:1,host1:1", *words)
    assert job.process.returncode == 0, job.lines
    printed = job.lines["stdout"]
    assert {f"[{rank}]<stdout>:process {rank}/2 sum 3" for rank in range(2)} <= {*printed}
