from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from horovod._settings.config import Config
from horovod.errors import StartError
from horovod.runner.placing.hosts import assign, parse_hosts
from horovod.runner.placing.plan import (
    JobSettings,
    StoreAddress,
    interface_environment,
    make_plan,
    membership_of,
)
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob, store_of

SECRET = bytes(range(32))
STORE = StoreAddress("127.0.0.1", 4242, SECRET)


def plan(hosts: str, num_proc: int, **settings: Any) -> list[AgentJob]:
    given: dict[str, Any] = {"command": ("python", "x"), "cwd": "/w", "environ": {}, **settings}
    return make_plan(assign(parse_hosts(hosts), num_proc), JobSettings(**given), STORE, 99)


def test_one_job_per_host_with_its_ranks() -> None:
    jobs = plan("a:2,b:1", 3)
    assert [job.hostname for job in jobs] == ["a", "b"]
    assert [[worker.rank for worker in job.workers] for job in jobs] == [[0, 1], [2]]


def test_a_job_of_the_launcher_is_one_generation() -> None:
    slots = assign(parse_hosts("b:2,a:1,c:4"), 5)
    membership = membership_of(slots)
    assert membership.hosts == [slot.hostname for slot in slots]
    for slot, member in zip(slots, membership.members, strict=True):
        place = asdict(member.place)
        assert place.pop("generation") == 0
        assert place == {name: getattr(slot, name) for name in place}


def test_the_variables_of_a_rank() -> None:
    job = plan("a:1,b:2", 3)[1]
    assert job.workers[1].env == {
        "HOROVOD_HOSTNAME": "b",
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }
    assert job.env == {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4242",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
    }


def test_a_rank_reads_what_the_plan_wrote() -> None:
    job = plan("a:2", 2)[0]
    config = Config.from_env({**job.env, **job.workers[1].env})
    assert (config.rank, config.size, config.local_rank, config.hostname) == (1, 2, 1, "a")
    assert (config.rendezvous_addr, config.rendezvous_port) == ("127.0.0.1", 4242)


def test_flags_are_stronger_than_inherited_variables_and_the_place_is_stronger_than_both() -> None:
    environ = {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "1800",
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "of another job",
    }
    env = plan("a:1", 1, environ=environ, variables={"HOROVOD_CYCLE_TIME": "2"})[0].env
    assert env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "1800"
    assert env["HOROVOD_CYCLE_TIME"] == "2"
    assert env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"


def test_network_interfaces() -> None:
    inherited = {"NCCL_SOCKET_IFNAME": "ib0"}
    assert plan("a:1", 1, environ=inherited)[0].env["NCCL_SOCKET_IFNAME"] == "ib0"
    env = plan("a:1", 1, environ=inherited, network_interfaces=("e1", "e2"))[0].env
    assert env["NCCL_SOCKET_IFNAME"] == "e1,e2"
    assert env["HOROVOD_GLOO_IFACE"] == "e1"


def test_other_machines_get_only_what_holds_on_any() -> None:
    environ = {
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "1",
        "BASH_FUNC_module%%": "() { :; }",
        "SSH_AUTH_SOCK": "/s",
        "HOROVOD_SECRET_KEY": "hush",
        "HOROVOD_WORKER_ID": "a-7",  # of a job in which the launcher itself is a rank
        "HOROVOD_GENERATION": "3",
        "PATH": "/bin",
        "HOMEPAGE": "x",
    }
    settings = JobSettings(("x",), "/w", environ)
    slots = assign(parse_hosts("here:1,me@there:1"), 2)
    here, there = make_plan(slots, settings, STORE, 99, ["there"])
    assert (here.remote, there.remote, there.user) == (False, True, "me")
    assert here.env["HOME"] == "/home/me"
    assert {"PATH", "HOMEPAGE"} == set(environ) & set(there.env)
    assert not {"HOROVOD_WORKER_ID", "HOROVOD_GENERATION"} & set(here.env)
    for job in (here, there):  # each agent finds out about its own host
        assert "HOROVOD_GLOO_IFACE" not in job.env
        assert "NCCL_SOCKET_IFNAME" not in job.env
    assert interface_environment(["e0", "e1"], there.env) == {
        "HOROVOD_GLOO_IFACE": "e0",
        "NCCL_SOCKET_IFNAME": "e0,e1",
    }
    assert (
        interface_environment(["e0"], {"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"
    )
    assert interface_environment([], {}) == {}


def test_a_job_moves_to_another_store() -> None:
    job = plan("a:1", 1)[0].at("10.0.0.1", 7)
    assert store_of(job) == ("10.0.0.1", 7)
    assert job.secret == SECRET


def test_a_job_survives_the_journey() -> None:
    odd = "not utf-8: \udcff"
    job = plan("a:2", 2, environ={"ODD": odd}, command=("echo", odd))[0]
    assert AgentJob.from_json(job.to_json()) == job


def test_each_worker_has_a_command_and_a_role_of_its_own() -> None:
    job = plan("a:2", 2)[0]
    first, second = job.workers
    assert (first.command, first.role) == (("python", "x"), "worker")
    job = replace(job, workers=(first, replace(second, command=("serve",), role="evaluator")))
    back = AgentJob.from_json(job.to_json())
    assert [(worker.command, worker.role) for worker in back.workers] == [
        (("python", "x"), "worker"),
        (("serve",), "evaluator"),
    ]
    assert WorkerJob.from_json(back.workers[1].to_json()) == back.workers[1]


def test_a_command_of_many_workers_travels_once() -> None:
    command = ("python", "x" * 1000)
    few, many = (len(plan(f"a:{n}", n, command=command)[0].to_json()) for n in (1, 100))
    assert many - few < 99 * 300


def test_a_worker_that_is_something_else_is_refused() -> None:
    for text in (
        b"",
        b"{}",
        b'[[0, 0, {}, 0, "worker"], []]',
        b'[[0, "0", {}, 0, "worker"], ["x"]]',
    ):
        with pytest.raises(StartError, match="this is not a worker"):
            WorkerJob.from_json(text)


def test_the_secret_is_not_shown() -> None:
    job = plan("a:1", 1)[0]
    assert SECRET.hex() not in repr(job)
    assert repr(SECRET) not in repr(job) + repr(STORE)
