"""The arguments of horovod.run, row by row: what reaches the launcher."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import horovod
from horovod._rendezvous import StoreServer, make_secret
from horovod.errors import RankFailedError, UsageError
from horovod.runner.function.task import result_key
from horovod.runner.placing.discovery import FixedHosts
from horovod.runner.starting.controller import Surroundings
from horovod.runner.starting.requests import MpiRequest
from horovod.runner.supervision.outcome import Outcome

Run = dict[str, Any]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Run:
    """What the launcher would get; each rank returns its number."""
    seen: Run = {}

    def start(request: Any, caller: Any) -> Outcome:
        seen.update(slots=request.slots, settings=request.settings, options=request.options)
        if isinstance(request, MpiRequest):
            seen.update(mpi_args=request.mpi_args)
        with StoreServer(make_secret()) as store, caller.store_user(store):
            for slot in request.slots:
                store.set(result_key(slot.rank), cloudpickle.dumps(slot.rank))
        return Outcome(0)

    monkeypatch.setattr("horovod.runner.function.run.start", start)
    monkeypatch.setattr(
        "horovod.runner.function.run.find_surroundings", lambda _: Surroundings(mpirun=True)
    )
    return seen


def names(seen: Run) -> list[str]:
    return [slot.hostname for slot in seen["slots"]]


ROWS: list[tuple[dict[str, Any], Any]] = [
    ({"num_proc": 3}, lambda seen: names(seen) == ["localhost"] * 3),
    ({"np": 3}, lambda seen: names(seen) == ["localhost"] * 3),
    ({"num_proc": 2, "hosts": "a:1,b:1"}, lambda seen: names(seen) == ["a", "b"]),
    ({"start_timeout": 5}, lambda seen: seen["options"].start_timeout_s == 5),
    (
        {"start_timeout": 5},
        lambda seen: seen["settings"].variables == {"HOROVOD_START_TIMEOUT": "5"},
    ),
    ({"ssh_port": 23}, lambda seen: seen["options"].ssh.port == 23),
    ({"ssh_identity_file": "k"}, lambda seen: seen["options"].ssh.identity_file == "k"),
    ({"output_filename": "o"}, lambda seen: seen["options"].output_filename == "o"),
    ({"verbose": 2}, lambda seen: seen["options"].verbose is True),
    ({"verbose": 0}, lambda seen: seen["options"].verbose is False),
    ({"disable_cache": True}, lambda seen: names(seen) == ["localhost"]),
    ({"use_gloo": True}, lambda seen: names(seen) == ["localhost"]),
    ({"use_gloo": True}, lambda seen: "mpi_args" not in seen),
    ({"use_mpi": False}, lambda seen: "mpi_args" not in seen),
    ({"use_mpi": True}, lambda seen: seen["mpi_args"] == ""),
    ({"use_mpi": True, "mpi_args": "-x A"}, lambda seen: seen["mpi_args"] == "-x A"),
    ({"config": {"controller": "mpi"}}, lambda seen: seen["mpi_args"] == ""),
    (
        {"config": {"controller": "mpi"}, "use_gloo": True},
        lambda seen: "mpi_args" not in seen,
    ),
    (
        {"network_interfaces": ["a", "b"]},
        lambda seen: seen["settings"].network_interfaces == ("a", "b"),
    ),
    (
        {"network_interface": "a, b"},
        lambda seen: seen["settings"].network_interfaces == ("a", "b"),
    ),
    (
        {"checkpoint_dir": Path("/a"), "checkpoint_every": 3},
        lambda seen: (
            seen["settings"].variables
            == {"HOROVOD_CHECKPOINT_DIR": "/a", "HOROVOD_CHECKPOINT_EVERY": "3"}
        ),
    ),
    ({"executable": "/x/python"}, lambda seen: seen["settings"].command[0] == "/x/python"),
    ({}, lambda seen: seen["settings"].command[0] == sys.executable),
    ({}, lambda seen: seen["settings"].variables == {}),
    (
        {"config": {"params": {"fusion_threshold_mb": 1}}, "start_timeout": 3},
        lambda seen: (
            seen["settings"].variables
            == {"HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_START_TIMEOUT": "3"}
        ),
    ),
]
HOSTS = FixedHosts({})
OLD = {"np", "min_np", "max_np", "network_interface"}
# Of an elastic job: what reaches it, and where.
SCRIPT = {"host_discovery_script": "s"}
ELASTIC: list[tuple[dict[str, Any], Any]] = [
    ({"min_num_proc": 2}, lambda elastic: elastic.rules.min_np == 2),
    ({"min_np": 2}, lambda elastic: elastic.rules.min_np == 2),
    ({"min_num_proc": 1, "max_num_proc": 5}, lambda elastic: elastic.rules.max_np == 5),
    ({"min_num_proc": 1, "max_np": 5}, lambda elastic: elastic.rules.max_np == 5),
    ({"min_num_proc": 1, "slots": 4}, lambda elastic: elastic.hosts[0].slots == 4),
    ({**SCRIPT, "reset_limit": 3}, lambda elastic: elastic.rules.reset_limit == 3),
    ({**SCRIPT, "cooldown_range": [1, 2]}, lambda elastic: elastic.rules.cooldown_range == (1, 2)),
    ({**SCRIPT, "elastic_timeout": 9}, lambda elastic: elastic.rules.elastic_timeout_s == 9),
    ({**SCRIPT, "worker_timeout": 9}, lambda elastic: elastic.rules.worker_timeout_s == 9),
    (SCRIPT, lambda elastic: elastic.discovery is not None and not elastic.hosts),
    ({"host_discovery": HOSTS}, lambda elastic: elastic.discovery is HOSTS),
]


@pytest.mark.parametrize(("arguments", "holds"), ROWS, ids=[str(row[0])[:60] for row in ROWS])
def test_an_argument_reaches_the_launcher(
    arguments: dict[str, Any], holds: Any, launched: Run
) -> None:
    expected = (
        pytest.warns(DeprecationWarning, match="is deprecated, use")
        if OLD & arguments.keys()
        else warnings.catch_warnings()
    )
    with expected:
        results = horovod.run(print, **arguments)
    assert results == list(range(len(launched["slots"])))
    assert holds(launched)


def test_a_hostfile_and_a_config_file(launched: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=1  # first\nb slots=1\n")
    (tmp_path / "config").write_text("logging: {level: info}")
    horovod.run(
        print, num_proc=2, hostfile=str(tmp_path / "hosts"), config=str(tmp_path / "config")
    )
    assert names(launched) == ["a", "b"]
    assert launched["settings"].variables == {"HOROVOD_LOG_LEVEL": "INFO"}


def test_every_argument_has_a_row() -> None:
    known = set(inspect.signature(horovod.run).parameters) - {"func", "args", "kwargs", "hostfile"}
    assert {name for arguments, _ in [*ROWS, *ELASTIC] for name in arguments} == known


@pytest.mark.parametrize(("arguments", "holds"), ELASTIC)
@pytest.mark.filterwarnings("ignore:horovod.run. m:DeprecationWarning")
def test_an_argument_reaches_an_elastic_job(
    arguments: dict[str, Any], holds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def start(request: Any, caller: Any) -> Outcome:
        seen.append(request)
        return Outcome(1, "not today")

    monkeypatch.setattr("horovod.runner.function.run.start", start)
    with pytest.raises(RankFailedError, match="not today"):
        horovod.run(print, num_proc=2, **arguments)
    assert holds(*seen)


@pytest.mark.parametrize("name", ["max_num_proc", "slots", "reset_limit", "elastic_timeout"])
def test_what_only_elastic_jobs_heed_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is not for .*: it is for elastic jobs"):
        horovod.run(print, **{name: 1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"func": 3}, "func is 3, which cannot be called"),
        ({"args": 3}, r"args is 3; write a tuple, such as \(3,\)"),
        ({"kwargs": [3]}, r"kwargs is \[3\]; write a dictionary"),
        ({"start_timeout": 0}, "start_timeout is 0; it must exceed 0"),
        ({"num_proc": 0}, "0 ranks"),
        ({"config": {"param": {}}}, "horovod.run: config: unknown key param; did you mean params"),
        ({"config": {"params": {"cycle_time_ms": -1}}}, "cycle_time_ms is -1, but must be"),
        ({"use_mpi": True, "use_gloo": True}, "use_gloo and use_mpi are mutually exclusive"),
        ({"hosts": "localhost:1", "hostfile": "f"}, "hosts and hostfile are mutually exclusive"),
        ({"min_num_proc": 2}, "--min-np 2 is not between 1 and -np 1"),
        ({"hosts": "localhost:1", "num_proc": 2}, "only 1 slot is available"),
        ({"hostfile": "/nowhere/f"}, "cannot read the hostfile"),
        ({"mpi_args": "-x A"}, "mpi_args is not for .*: it is for jobs that mpirun"),
        ({"use_mpi": True, "min_num_proc": 1}, "use_mpi is not for elastic jobs"),
        ({"config": "/nowhere/c"}, "cannot read the config file /nowhere/c"),
        ({"args": (threading.Lock(),)}, "cannot be sent to the ranks: TypeError: cannot pickle"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        horovod.run(**{"func": print, **arguments})
    assert "\n" not in str(caught.value)


def fail() -> None:
    raise ValueError("cannot be made again")


class Fragile:
    """A result that can be sent, but not read."""

    def __reduce__(self) -> Any:
        return fail, ()


def test_a_result_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(request: Any, caller: Any) -> Outcome:
        with StoreServer(make_secret()) as store, caller.store_user(store):
            store.set(result_key(0), cloudpickle.dumps(Fragile()))
        return Outcome(0)

    monkeypatch.setattr("horovod.runner.function.run.start", start)
    with pytest.raises(RankFailedError, match="the result of rank 0 cannot be read here: ValueErr"):
        horovod.run(print)
