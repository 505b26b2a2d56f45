"""What a host that joins a job by itself, and its launcher, say to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from horovod._rendezvous import StoreServer, make_secret
from horovod.errors import StartError
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.frames import Frame, Kind
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.protocol.joining import (
    HOST_PYTHON,
    HostMessage,
    Receiver,
    Sender,
    Session,
    at_host,
    for_host,
)

SECRET = b"\xab" * 32
ENV = {
    "HOROVOD_FUSION_THRESHOLD": "1",
    "HOROVOD_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_SECRET_KEY": SECRET.hex(),
    "NCCL_IB_DISABLE": "1",
    "API_TOKEN": "hush",
    "PATH": "/launcher/bin",
}
JOB = AgentJob("worker-0", "/launcher", ENV, (), SECRET, launcher_pid=7, stays=True, slots=2)


def test_neither_secret_nor_environment_of_the_launcher_travels() -> None:
    frames = [
        for_host(Frame(Kind.JOB, -1, JOB.to_json())),
        for_host(Frame(Kind.INVITATION, -1, Invitation((("10.0.0.1", 1),), SECRET).to_json())),
    ]
    for frame in frames:
        for hidden in (SECRET.hex(), "hush", "API_TOKEN", "/launcher/bin"):
            assert hidden.encode() not in frame.payload


def test_a_host_fills_in_its_own_secret_environment_and_directory() -> None:
    sent = for_host(Frame(Kind.JOB, -1, JOB.to_json()))
    job = AgentJob.from_json(
        at_host(sent, SECRET, {"PATH": "/host/bin", "NCCL_IB_DISABLE": "0"}, "/host").payload
    )
    assert job.secret == SECRET
    assert job.cwd == "/host"
    assert job.remote  # there is no process of the launcher to watch
    assert job.env == {
        "PATH": "/host/bin",
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_FUSION_THRESHOLD": "1",
        "HOROVOD_RENDEZVOUS_ADDR": "10.0.0.1",
        "NCCL_IB_DISABLE": "1",
    }
    way = Frame(Kind.INVITATION, -1, Invitation((("10.0.0.1", 1),), SECRET, ("eth0",)).to_json())
    assert at_host(for_host(way), SECRET, {}, "/") == way


def test_a_host_runs_python_functions_with_its_own_python() -> None:
    worker = WorkerJob(3, 1, {}, (HOST_PYTHON, "-m", "module"))
    job = replace(JOB, workers=(worker,))
    told = at_host(for_host(Frame(Kind.JOB, -1, job.to_json())), SECRET, {}, "/", "/host/python")
    assert AgentJob.from_json(told.payload).workers[0].command == ("/host/python", "-m", "module")
    later = Frame(Kind.START_WORKER, 3, worker.to_json())
    started = WorkerJob.from_json(at_host(later, SECRET, {}, "/", "/host/python").payload)
    assert started == replace(worker, command=("/host/python", "-m", "module"))


def test_other_frames_pass_as_they_are() -> None:
    frame = Frame(Kind.TAKEN, -1, b"17")
    assert for_host(frame) is frame
    assert at_host(frame, SECRET, {}, "/") is frame


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"kind": "join"}', b"[" * 100_000])
def test_what_is_no_word_is_refused(text: bytes) -> None:
    with pytest.raises(StartError, match="no host says this"):
        HostMessage.from_json(text)


def test_bytes_arrive_in_order_and_leave_nothing_behind() -> None:
    session = Session("visit", 0)
    with StoreServer(make_secret()) as store:
        sender = Sender(store, session.to_agent)
        receiver = Receiver(store, session, session.to_agent)
        for number in range(12):
            sender.send(b"%d" % number)
        assert [receiver.receive() for _ in range(12)] == [b"%d" % number for number in range(12)]
        sender.send(b"")
        assert receiver.receive() == b""
        assert store.delete_prefix(f"{session.to_agent}/0/") == 0


def test_a_broken_session_ends_a_wait() -> None:
    session = Session("visit", 0)
    with StoreServer(make_secret()) as store:
        store.set(session.broken_key, b"")
        assert Receiver(store, session, session.to_launcher).receive() == b""
