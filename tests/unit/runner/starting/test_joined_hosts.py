"""Which hosts may join a job by themselves, and how they find it."""

from __future__ import annotations

import io
import json
import os
import queue
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import horovod
from horovod._rendezvous import StoreClient, StoreServer, make_secret
from horovod.errors import StartError, UsageError
from horovod.runner.placing.discovery import FixedHosts
from horovod.runner.protocol import joining
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.protocol.joining import HostMessage
from horovod.runner.starting.joined_hosts import JoinedHosts, join_file
from horovod.runner.starting.joining import join, read_invitation
from horovod.runner.starting.requests import JoinRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = make_secret()


class Job:
    """A store that lets hosts in, beside one fixed host."""

    def __init__(self, stack: ExitStack) -> None:
        self.lines: list[str] = []
        self.server = stack.enter_context(StoreServer(SECRET))
        self.hosts = JoinedHosts(FixedHosts({"first": 2}), self.lines.append)
        self.hosts.find_available_hosts_and_slots()
        stack.enter_context(self.hosts.using(self.server))
        self.invitation = Invitation(self.server.endpoints, SECRET)

    def client(self) -> StoreClient:
        return StoreClient(self.server.address, self.server.port, SECRET, purpose="launcher")

    def says(self, client: StoreClient, kind: str, visit: str = "v", **more: object) -> str:
        """Says something for a host, and returns the answer to the first message of a visit."""
        said = {"host": "second", "slots": 3, "version": horovod.__version__, **more}
        client.append(joining.MESSAGES, HostMessage(kind, visit, **said).to_json())  # type: ignore[arg-type]
        return client.get(joining.answer_key(visit), 10.0).decode()


@pytest.fixture
def job() -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(stack)


def test_a_host_that_joins_is_listed_until_it_leaves(job: Job) -> None:
    with job.client() as client:
        assert job.says(client, joining.JOIN) == ""
        assert job.hosts.find_available_hosts_and_slots() == {"first": 2, "second": 3}
        job.says(client, joining.LEAVE)
        # It has no agent that would have to end first.
        assert client.get(joining.over_key("v"), 10.0) == b"it has left the job"
        assert job.hosts.find_available_hosts_and_slots() == {"first": 2}


def test_a_host_whose_connection_ends_is_gone_and_may_come_back(job: Job) -> None:
    gone = HostMessage(joining.GONE, "v", "second", 3, horovod.__version__)
    with job.client() as client:
        client.leave_will(joining.MESSAGES, gone.to_json(), append=True)
        job.says(client, joining.JOIN)
    with job.client() as client:
        client.get(f"{joining.MESSAGES}1", 10.0)
        assert job.says(client, joining.JOIN, visit="w") == ""
        # What remains of an earlier visit says nothing about this one.
        client.append(joining.MESSAGES, gone.to_json())
        job.says(client, joining.JOIN, visit="x", host="third")
        assert job.hosts.has("second")
    assert any("has ended" in line for line in job.lines)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"version": "0.28.1"}, "it has Horovod 0.28.1"),
        ({"slots": 0}, "it offers 0 slots"),
        ({"host": "first"}, "has a host first already"),
    ],
)
def test_who_does_not_fit_is_told_why(job: Job, more: dict[str, object], reason: str) -> None:
    with job.client() as client:
        assert reason in job.says(client, joining.JOIN, **more)
        assert job.hosts.find_available_hosts_and_slots() == {"first": 2}


def test_words_that_make_no_sense_harm_nobody(job: Job) -> None:
    with job.client() as client:
        client.append(joining.MESSAGES, b"what?")
        assert job.says(client, joining.JOIN) == ""
    assert "a host tries to join, but no host says this" in job.lines[0]


def test_at_the_end_of_a_job_its_hosts_are_told(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    reasons: list[str] = []
    with ExitStack() as stack:
        job = Job(stack)
        options = JoinRequest("", "second", 1, dict(os.environ), str(tmp_path))

        def stay() -> None:
            reasons.append(join(options, job.invitation, read_end, said.put))

        thread = threading.Thread(target=stay)
        thread.start()
        assert said.get(timeout=60.0) == "this host, second, has joined the job with 1 slot(s)"
    thread.join(60.0)
    os.close(read_end)
    os.close(write_end)
    assert reasons == ["the job has ended"]
    assert said.empty()


def test_a_job_that_lets_nobody_in_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horovod.runner.starting.joining._ANSWER_S", 0.1)
    with StoreServer(SECRET) as server:
        options = JoinRequest("", "second", 1, {}, str(tmp_path))
        with pytest.raises(StartError, match="was it started with --join-file"):
            join(options, Invitation(server.endpoints, SECRET), 0, print)


def test_a_file_leads_to_the_job_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "job.join"
    invitation = Invitation((("10.0.0.1", 4711), ("fd00::2", 4711)), SECRET)
    with join_file(str(path), invitation):
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_invitation(str(path), {}, io.StringIO()) == invitation
        assert read_invitation("-", {}, io.StringIO(path.read_text())) == invitation
        with (
            pytest.raises(UsageError, match="does another job use it"),
            join_file(str(path), invitation),
        ):
            raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_made_leaves_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "job.join"
    first = Invitation((("10.0.0.1", 4711),), SECRET)
    second = Invitation((("10.0.0.2", 4711),), SECRET)
    for name in ("job.join.new", "job.join"):  # of others
        (tmp_path / name).write_text("theirs")
    with pytest.raises(UsageError, match="it exists"), join_file(str(path), first):
        raise AssertionError
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "job.join.new": "theirs",
        "job.join": "theirs",
    }
    path.unlink()
    with join_file(str(path), first):
        path.unlink()
        with join_file(str(tmp_path / "other"), second):  # of a job that came after
            (tmp_path / "other").rename(path)
    assert read_invitation(str(path), {}, io.StringIO()) == second


def test_an_address_needs_the_secret() -> None:
    found = Invitation((("10.0.0.1", 4711),), SECRET)
    key = {"HOROVOD_SECRET_KEY": SECRET.hex()}
    assert read_invitation("10.0.0.1:4711", key, io.StringIO()) == found
    assert read_invitation("10.0.0.1:4711", {}, io.StringIO(f"{SECRET.hex()}\n")) == found
    assert read_invitation("[fd00::2]:1", key, io.StringIO()).endpoints == (("fd00::2", 1),)
    for text in ("", "hush", "ab"):
        with pytest.raises(StartError, match="secret"):
            read_invitation("10.0.0.1:4711", {}, io.StringIO(text))


@pytest.mark.parametrize("where", ["no-such-file", "host:", "host:0", ":80", "host:port", ""])
def test_what_is_neither_file_nor_address_is_refused(where: str) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_invitation(where, {}, io.StringIO())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hush")
    path.chmod(0o600)
    with pytest.raises(StartError, match="not an invitation") as caught:
        read_invitation(str(path), {}, io.StringIO())
    assert "hush" not in str(caught.value)
    with pytest.raises(UsageError, match="it is not a regular file"):
        read_invitation(str(tmp_path), {}, io.StringIO())


def test_a_file_that_others_may_have_written_is_refused(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(Invitation((("10.0.0.1", 4711),), SECRET).to_json())
    path.chmod(0o660)
    link.symlink_to(path)
    with pytest.raises(UsageError, match=r"other users may change it \(mode 0660\)"):
        read_invitation(str(path), {}, io.StringIO())
    with pytest.raises(UsageError, match="it is a symbolic link"):
        read_invitation(str(link), {}, io.StringIO())


@pytest.mark.parametrize("slots", [10**12, 4097, 0, -5])
def test_slots_that_no_host_has_are_refused(job: Job, slots: int) -> None:
    with job.client() as client:
        assert f"it offers {slots} slots; offer 1 to 4096" in job.says(client, "join", slots=slots)
    assert job.hosts.find_available_hosts_and_slots() == {"first": 2}


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a;b", "", "[::1"])
def test_names_that_are_not_of_a_host_are_refused(job: Job, host: str) -> None:
    with job.client() as client:
        assert f"{host!r} is not the name of a host" in job.says(client, "join", host=host)


@pytest.mark.parametrize(
    "message",
    [
        HostMessage("join", "v", "a\nhorovodrun: all is well", 1, horovod.__version__),
        HostMessage("join", "v", "a" * 100_000, 1, horovod.__version__),
        HostMessage("join", "v" * 600, "a", 1, horovod.__version__),
        HostMessage("join", "v", "a", 10**4000, horovod.__version__),
        HostMessage("join", "v", "a", 1, "1.0\n"),
    ],
)
def test_what_no_host_says_is_one_short_line_of_the_log(job: Job, message: HostMessage) -> None:
    with job.client() as client:
        client.append(joining.MESSAGES, message.to_json())
        assert job.says(client, "join", visit="w") == ""  # the next one is heard
    assert job.lines[0] == "a host tries to join, but no host says this: ValueError"


def test_a_host_of_another_version_hears_both_even_if_it_says_more(job: Job) -> None:
    said = {"kind": "join", "visit": "v", "host": "second", "slots": 1, "version": "1.99.0"}
    with job.client() as client:
        client.append(joining.MESSAGES, json.dumps(said | {"of_the_future": 1}).encode())
        answer = client.get(joining.answer_key("v"), 10.0).decode()
    assert answer.startswith(
        f"it has Horovod 1.99.0, but the launcher has {horovod.__version__}; install the same"
    )
    assert job.hosts.find_available_hosts_and_slots() == {"first": 2}
