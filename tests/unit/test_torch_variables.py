"""What the variables of torchrun, and of launchers like it, make of a process."""

from __future__ import annotations

import pytest

from horovod._settings.config import Config
from horovod._settings.foreign_launchers import find_foreign_launcher
from horovod.errors import StartError, UsageError
from horovod.runner.cli.requests import _refuse_to_multiply

PLAIN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
LOCAL = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN = {
    **PLAIN,
    **LOCAL,
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
OURS = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}


@pytest.mark.parametrize(
    ("variables", "name", "place"),
    [
        (PLAIN, "the launcher that set WORLD_SIZE", (1, 4)),
        (TORCHRUN, "torchrun", (1, 4)),
        ({**PLAIN, "RANK": " 3 "}, "the launcher that set WORLD_SIZE", (3, 4)),
        # One torchrun for each task of srun, or each process of mpirun.
        ({**TORCHRUN, **SLURM}, "torchrun", (1, 4)),
        ({**TORCHRUN, **OPEN_MPI}, "torchrun", (1, 4)),
        ({**TORCHRUN, **OPEN_MPI, "RANK": "0", "WORLD_SIZE": "1"}, "torchrun", (0, 1)),
        # Who knows more than one rank is followed before RANK and WORLD_SIZE.
        ({**PLAIN, **OPEN_MPI}, "Open MPI", (3, 8)),
        ({**PLAIN, **SLURM}, "Slurm", (1, 2)),
        (
            {**PLAIN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
            "the launcher that set WORLD_SIZE",
            (1, 4),
        ),
        # Lightning's own launcher leaves RANK out.
        (
            {**PLAIN, "RANK": "", "NODE_RANK": "0", "LOCAL_RANK": "2"},
            "the launcher that set WORLD_SIZE",
            (2, 4),
        ),
    ],
)
def test_who_started_this_process(
    variables: dict[str, str], name: str, place: tuple[int, int]
) -> None:
    config = Config.from_env(variables)
    assert config.foreign_launcher is not None
    assert config.foreign_launcher.name == name
    assert (config.rank, config.size) == place
    assert not config.is_placed


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": "4"},  # a warning says so
        {**PLAIN, "RANK": "0", "WORLD_SIZE": "1"},
        {"MASTER_ADDR": "node-0", "MASTER_PORT": "29500"},
        {"LOCAL_RANK": "0"},
        {"RANK": "captain"},
        # Our launcher is followed before all others, whatever its ranks inherit.
        {**TORCHRUN, **OURS},
        {"RANK": "9", **OURS},
        {"RANK": "9", "WORLD_SIZE": "many", **OURS},
    ],
)
def test_processes_that_are_alone(variables: dict[str, str]) -> None:
    config = Config.from_env(variables)
    assert (config.rank, config.size, config.foreign_launcher) == (0, 1, None)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK=1 is set but WORLD_SIZE is not"),
        ({**PLAIN, "RANK": ""}, "WORLD_SIZE is set but RANK is not"),
        ({**PLAIN, "RANK": "one"}, "RANK='one' is not an integer"),
        ({**PLAIN, "RANK": "4"}, r"RANK=4 is not in 0 … 3, as WORLD_SIZE=4"),
        ({**PLAIN, "RANK": "-1"}, r"RANK=-1 is not in 0 … 3"),
        ({**PLAIN, "WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not an integer"),
        ({**PLAIN, "WORLD_SIZE": "0"}, "WORLD_SIZE=0 is not a number of processes"),
        ({**PLAIN, "MASTER_ADDR": ""}, "WORLD_SIZE=4 announces several ranks, but MASTER_ADDR is"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "but MASTER_ADDR and MASTER_PORT are not set"),
        ({**PLAIN, "MASTER_PORT": "http"}, "MASTER_PORT=http is not a port"),
        ({**PLAIN, "MASTER_PORT": "70000"}, "MASTER_PORT=70000 is not a port"),
        (
            {**PLAIN, "RANK": "", "NODE_RANK": "1", "LOCAL_RANK": "2"},
            "WORLD_SIZE is set but RANK is not",
        ),
    ],
)
def test_a_job_described_in_part_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(StartError, match=message):
        Config.from_env(variables)


def test_a_bootstrap_address_takes_the_place_of_the_master() -> None:
    given = {"HOROVOD_RENDEZVOUS": "node-0:29400", "HOROVOD_SECRET_KEY": "0f" * 32}
    config = Config.from_env({"RANK": "1", "WORLD_SIZE": "2", **given})
    assert (config.rank, config.size, config.bootstrap_address) == (1, 2, ("node-0", 29400))


def test_variables_that_contradict_the_launcher_are_named(caplog: pytest.LogCaptureFixture) -> None:
    zero = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}
    Config.from_env({**zero, "RANK": "0", "WORLD_SIZE": "8"})
    assert not caplog.records
    Config.from_env({**PLAIN, **zero})
    (record,) = caplog.records
    assert record.message.startswith("RANK=1 and WORLD_SIZE=4 are ignored")
    assert "OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=8" in record.message


def test_only_what_says_so_is_taken_for_one_host() -> None:
    def is_one_host(variables: dict[str, str]) -> bool:
        found = find_foreign_launcher(variables)
        assert found is not None
        return found[0].one_host

    assert is_one_host({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"})
    assert not is_one_host(TORCHRUN)
    # On the host of rank 0 the name of this host may be the address for all.
    assert not is_one_host({**PLAIN, "MASTER_ADDR": "localhost"})


@pytest.mark.parametrize(
    "change",
    [
        {"TORCHELASTIC_RESTART_COUNT": "1"},
        {"TORCHELASTIC_RUN_ID": "another"},
        {"MASTER_PORT": "29501"},
        {"WORLD_SIZE": "3"},
    ],
)
def test_each_round_of_each_job_has_a_name_of_its_own(change: dict[str, str]) -> None:
    attempts = []
    for variables in (TORCHRUN, {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}, TORCHRUN | change):
        found = find_foreign_launcher(variables)
        assert found is not None
        assert found[0].master is not None
        attempts.append(found[0].master.attempt)
    assert attempts[0] == attempts[1] != attempts[2]


def test_horovodrun_is_not_multiplied_by_torchrun() -> None:
    with pytest.raises(UsageError, match=r"torchrun started horovodrun 4 times \(WORLD_SIZE\)"):
        _refuse_to_multiply(TORCHRUN)
    _refuse_to_multiply(PLAIN)  # what scripts export does not say how often it was started
    _refuse_to_multiply({"RANK": "1"})
