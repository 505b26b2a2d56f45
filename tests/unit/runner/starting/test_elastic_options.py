"""What a user may ask of an elastic job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from horovod.errors import StartError, UsageError
from horovod.runner.placing.discovery import FixedHosts, HostDiscoveryScript
from horovod.runner.placing.hosts import Host, parse_hosts
from horovod.runner.placing.plan import JobSettings
from horovod.runner.starting.elastic_options import elastic_request
from horovod.runner.starting.requests import Asked, ElasticRequest, LaunchOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def elastic(
    asked: Asked, num_proc: int, hosts: Sequence[Host], environ: Mapping[str, str]
) -> ElasticRequest:
    settings = JobSettings(("x",), "/", environ)
    return elastic_request(asked, num_proc, hosts, settings, LaunchOptions())


@pytest.mark.parametrize(
    ("given", "num_proc", "message"),
    [
        ({"min_num_proc": 3}, 2, "--min-np 3 is not between 1 and -np 2"),
        ({"min_num_proc": 0}, 2, "--min-np is 0, but must be at least 1"),
        ({"min_num_proc": 1, "max_num_proc": 1}, 2, "--max-np 1 is less than -np 2"),
        ({"min_num_proc": 1, "reset_limit": -1}, 2, "--reset-limit is -1, but must be at least 0"),
        ({"min_num_proc": 1, "slots": 0}, 2, "--slots-per-host is 0, but must be at least 1"),
        ({"min_num_proc": 1, "elastic_timeout": 0}, 2, "--elastic-timeout is 0, but must be more"),
        ({"min_num_proc": 1, "cooldown_range": (9, 2)}, 2, "cool-down range 9 2 is not two asc"),
        ({"min_num_proc": 1, "cooldown_range": (9,)}, 2, "cool-down range has 1 numbers"),
        ({"host_discovery_script": "x"}, 2, "-H or -hostfile, and --host-discovery-script are"),
    ],
)
def test_what_contradicts_itself_is_refused(
    given: dict[str, Any], num_proc: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        elastic(Asked(**given), num_proc, [Host("a", 4)], {})


@pytest.mark.parametrize(
    ("hosts", "slots", "expected"),
    [("a", None, {"a": 4}), ("a,b:3", None, {"a": 1, "b": 3}), ("a,b:3", 2, {"a": 2, "b": 3})],
)
def test_fixed_hosts_without_a_number_get_slots(
    hosts: str, slots: int | None, expected: dict[str, int]
) -> None:
    asked = Asked(min_num_proc=1, max_num_proc=4, slots=slots)
    found = elastic(asked, 2, parse_hosts(hosts), {})
    assert {host.name: host.slots for host in found.hosts} == expected
    assert found.rules.fixed_hosts
    assert found.discovery is None


def test_the_timeout_is_that_of_the_flag_or_of_the_environment() -> None:
    environ = {"HOROVOD_ELASTIC_TIMEOUT": "20"}
    hosts = [Host("a", 2)]
    asked = Asked(min_num_proc=1)
    assert elastic(asked, 1, hosts, {}).rules.elastic_timeout_s == 600
    assert elastic(asked, 1, hosts, environ).rules.elastic_timeout_s == 20
    asked = Asked(min_num_proc=1, elastic_timeout=5)
    assert elastic(asked, 1, hosts, environ).rules.elastic_timeout_s == 5
    with pytest.raises(StartError, match="HOROVOD_ELASTIC_TIMEOUT is 'soon'"):
        elastic(Asked(min_num_proc=1), 1, hosts, {"HOROVOD_ELASTIC_TIMEOUT": "soon"})


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 60),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "15"}, 15),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "15", "HOROVOD_WORKER_TIMEOUT": "7.5"}, 7.5),
    ],
)
def test_patience_with_silent_workers_is_that_with_stalls(
    environ: dict[str, str], seconds: float
) -> None:
    hosts = [Host("a", 2)]
    asked = Asked(min_num_proc=1)
    assert elastic(asked, 1, hosts, environ).rules.worker_timeout_s == seconds
    asked = Asked(min_num_proc=1, worker_timeout=5)
    assert elastic(asked, 1, hosts, environ).rules.worker_timeout_s == 5
    with pytest.raises(StartError, match="HOROVOD_WORKER_TIMEOUT is '0'"):
        elastic(Asked(min_num_proc=1), 1, hosts, {"HOROVOD_WORKER_TIMEOUT": "0"})


def test_a_script_or_an_object_lists_the_hosts() -> None:
    assert isinstance(
        elastic(Asked(host_discovery_script="x"), 1, [], {}).discovery, HostDiscoveryScript
    )
    own = FixedHosts({"a": 1})
    assert elastic(Asked(host_discovery=own), 1, [], {}).discovery is own
    with pytest.raises(UsageError, match="are mutually exclusive"):
        elastic(Asked(host_discovery=own, host_discovery_script="x"), 1, [], {})
