"""Ranks that another launcher started: what its variables say."""

from __future__ import annotations

import pytest

from horovod._rank.job_context import Context
from horovod._settings.config import Config
from horovod._settings.foreign_launchers import ForeignLauncher, find_foreign_launcher
from horovod.errors import StartError

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-1@1",
    "PMIX_PREFIX": "/opt/pmix",
}
MPICH = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMI_FD": "9",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "6",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "3",
    "LSB_JOBID": "12",
    "PMIX_NAMESPACE": "4",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "HOROVOD_SIZE": "3"}


@pytest.mark.parametrize(
    ("variables", "launcher", "places"),
    [
        (
            OPEN_MPI,
            ForeignLauncher("Open MPI", "prterun-a-1@1", None, ("", "/opt/pmix")),
            (3, 4, 1, 2),
        ),
        (MPICH, ForeignLauncher("MPICH", "", 9, (), one_host=True), (1, 2, 1, 2)),
        (SLURM, ForeignLauncher("Slurm", "77-0"), (5, 8, 0, 1)),
        (JSRUN, ForeignLauncher("jsrun", "12-4", None, ("",)), (1, 6, 1, 3)),
        (KUBERNETES, ForeignLauncher("Kubernetes"), (2, 3, 0, 1)),
        # mpirun inside a Slurm job
        (
            SLURM | OPEN_MPI,
            ForeignLauncher("Open MPI", "prterun-a-1@1", None, ("", "/opt/pmix")),
            (3, 4, 1, 2),
        ),
        (
            SLURM | {"SLURM_STEP_NUM_NODES": "1"},
            ForeignLauncher("Slurm", "77-0", one_host=True),
            (5, 8, 0, 1),
        ),
    ],
)
def test_who_started_this_process(
    variables: dict[str, str], launcher: ForeignLauncher, places: tuple[int, ...]
) -> None:
    config = Config.from_env(variables)
    assert config.foreign_launcher == launcher
    assert (config.rank, config.size, config.local_rank, config.local_size) == places
    assert not config.is_placed


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"JOB_COMPLETION_INDEX": "2"},  # pods that have nothing to do with one another
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"},  # the script of a job
        OPEN_MPI | {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
    ],
)
def test_processes_that_are_alone(variables: dict[str, str]) -> None:
    assert find_foreign_launcher(variables) is None
    config = Config.from_env(variables)
    assert (config.rank, config.size, config.foreign_launcher) == (0, 1, None)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"WORLD_SIZE": "2"}, "(WORLD_SIZE=2)"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "(SLURM_NTASKS=8, SLURM_PROCID=0): "),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "(JAX_NUM_PROCESSES=2, JAX_PROCESS_ID"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, "2 processes (TF_CONFIG)"),
        (
            {
                "TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]},'
                ' "task": {"type": "chief", "index": 0}}'
            },
            "2 processes (TF_CONFIG)",
        ),
    ],
)
def test_one_process_says_that_each_trains_alone(
    variables: dict[str, str],
    named: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = Context(Config.from_env(variables))
    for _ in range(2):
        context.init()
        assert context.config.size == 1
        context.shutdown()
    (record,) = caplog.records
    assert "is a job of one rank and trains alone" in record.message
    assert named in record.message


@pytest.mark.parametrize(
    "variables",
    [
        {"TF_CONFIG": '{"cluster": {"worker": ["a", "b"]}, "task": {"index": 1}}'},
        {"TF_CONFIG": '{"cluster": {"chief": ["a"], "worker": ["b"]}, "task": {"type": "worker"}}'},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
        {"TF_CONFIG": '{"cluster": ["a:1"]}'},
        {"TF_CONFIG": "not JSON"},
        # Whoever started it said that it is alone.
        {"RANK": "0", "WORLD_SIZE": "4", "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
        SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        OPEN_MPI | {"WORLD_SIZE": "4", "RANK": "0"},
    ],
)
def test_nobody_else_says_so(variables: dict[str, str]) -> None:
    assert not Config.from_env(variables).unserved_launcher


def test_the_place_among_the_hosts_follows_from_the_hosts_of_all_ranks() -> None:
    hosts = [0, 0, 1, 0, 1]
    placed = [
        Config.from_env({**SLURM, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "5"}).at_hosts(
            hosts
        )
        for rank in range(5)
    ]
    assert [(c.local_rank, c.local_size, c.cross_rank, c.cross_size) for c in placed] == [
        (0, 3, 0, 2),
        (1, 3, 0, 2),
        (0, 2, 1, 2),
        (2, 3, 0, 1),
        (1, 2, 1, 2),
    ]


def test_a_launcher_of_ours_knows_the_place_better() -> None:
    told = {
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
    }
    config = Config.from_env(told)
    assert config.at_hosts([0, 0]) == config
    assert config.cross_rank == 1


def test_a_bootstrap_address_needs_a_good_secret() -> None:
    given = {**KUBERNETES, "HOROVOD_RENDEZVOUS": "train-0.train:29400"}
    with pytest.raises(StartError, match="needs a secret that all ranks share"):
        Config.from_env(given)
    with pytest.raises(StartError, match="has 6 characters, but must be 64 hexadecimal digits"):
        Config.from_env({**given, "HOROVOD_SECRET_KEY": "secret"})
    config = Config.from_env({**given, "HOROVOD_SECRET_KEY": "0f" * 32})
    assert config.bootstrap_address == ("train-0.train", 29400)
    assert "0f0f" not in repr(config)
    config = Config.from_env({**given, "HOROVOD_SECRET_FILE": "/run/secrets/horovod"})
    assert config.secret_file == "/run/secrets/horovod"


@pytest.mark.parametrize("text", ["host", "host:", "host:0", "host:65536", "::1:5", ":5", "a b:5"])
def test_a_bootstrap_address_is_host_and_port(text: str) -> None:
    with pytest.raises(StartError, match="is not host:port"):
        Config.from_env({**KUBERNETES, "HOROVOD_RENDEZVOUS": text})


def test_a_bootstrap_address_may_be_an_address() -> None:
    given = {**KUBERNETES, "HOROVOD_SECRET_KEY": "0f" * 32, "HOROVOD_RENDEZVOUS": "[::1]:5"}
    assert Config.from_env(given).bootstrap_address == ("::1", 5)
