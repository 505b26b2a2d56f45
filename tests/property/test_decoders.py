"""Every decoder of what somebody else wrote: any bytes are a value, or the error that it names.

Half of the inputs are right ones with some bytes changed, which come further than random bytes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from horovod._rendezvous import messages
from horovod._rendezvous.framing import FrameError, FrameReader, FrameWriter
from horovod._rendezvous.handshake import (
    HELLO_BYTES,
    PURPOSES,
    ClientHandshake,
    HandshakeError,
    Hello,
    ReplayStore,
    ServerHandshake,
    pack_hello,
    unpack_hello,
)
from horovod._rendezvous.incarnation import Incarnation
from horovod._rendezvous.link_speed import LinkSpeeds
from horovod._rendezvous.roster import RankInfo
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError
from horovod.runner.placing.hosts import parse_hostfile, parse_hosts
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.frames import Decoder, Kind, encode
from horovod.runner.protocol.frames import FrameError as PipeError

SECRET = bytes(range(32))
KEY = b"k" * 32
INFO = RankInfo(1, 2, "host", 4711, "key", "1.0", "127.0.0.1", 80, "horovod-x", 2, 0)
JOB = AgentJob(
    "host", "/", {"A": "b"}, (WorkerJob(0, 0, {"C": "d"}, ("python", "x.py")),), SECRET, 1
)


@st.composite
def damaged(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes of which some were changed, removed, repeated or added."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8))
        match draw(st.integers(0, 3)):
            case 0:
                data[place : place + length] = draw(st.binary(min_size=length, max_size=length))
            case 1:
                del data[place : place + length]
            case 2:
                data[place:place] = data[place : place + length]
            case 3:
                data[place:place] = draw(st.binary(max_size=8))
    return bytes(data)


def bytes_like(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(damaged(valid), st.binary(max_size=200))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def feed(machine: Any, data: bytes) -> None:
    """Gives a machine that reads by steps what it asks for; never more."""
    while data and len(machine.buffer()) > 0:
        view = machine.buffer()
        size = min(len(view), len(data))
        view[:size] = data[:size]
        machine.filled(size)
        data = data[size:]


hellos = st.builds(
    Hello,
    st.sampled_from(PURPOSES),
    *(st.integers(0, 2**32 - 1) for _ in range(2)),
    st.builds(Incarnation, *(st.integers(0, 2**32 - 1) for _ in range(2))),
    st.integers(0, 2**32 - 1),
)


@given(st.builds(Incarnation, *(st.integers(0, 2**32 - 1) for _ in range(2))))
def test_incarnations_come_back_as_they_were(incarnation: Incarnation) -> None:
    assert Incarnation.parse(str(incarnation).encode()) == incarnation


@given(hellos, st.binary(min_size=32, max_size=32))
def test_hellos_come_back_as_they_were(hello: Hello, nonce: bytes) -> None:
    assert unpack_hello(SECRET, pack_hello(SECRET, hello, nonce)) == (hello, nonce)


@given(
    bytes_like(st.builds(pack_hello, st.just(SECRET), hellos, st.just(b"n" * 32))), st.booleans()
)
def test_the_server_takes_a_right_hello_or_refuses(data: bytes, repeated: bool) -> None:
    replay = ReplayStore()
    if repeated:
        replay.add(b"n" * 32)
    server = ServerHandshake(SECRET, lambda hello: True, replay)
    with suppress(HandshakeError):
        feed(server, data)
    assert server.session is None  # nobody can prove himself with a hello alone
    if server.hello is not None:
        assert pack_hello(SECRET, server.hello, b"n" * 32) in data[:HELLO_BYTES]


@given(bytes_like(st.binary(min_size=96, max_size=96)))
def test_the_client_refuses_whatever_is_no_proof(data: bytes) -> None:
    client = ClientHandshake(SECRET, Hello("store"))
    with suppress(HandshakeError):
        feed(client, data)
    assert client.session is None


@given(bytes_like(st.binary(max_size=100).map(lambda b: b"".join(FrameWriter(KEY).frame([b])))))
def test_frames_of_an_authenticated_connection(data: bytes) -> None:
    reader = FrameReader(KEY, limit_bytes=1000)
    with suppress(FrameError):
        feed(reader, data)
    assert len(reader.buffer()) <= 1000 + 32


@given(
    bytes_like(
        st.builds(
            lambda v: b"".join(messages.encode({"op": "x"}, v)), st.lists(st.binary(max_size=9))
        )
    )
)
@example(b"\0\0\0\x02{}")
def test_messages_of_the_store(data: bytes) -> None:
    with suppress(messages.MessageError):
        header, values = messages.decode(memoryview(data))
        assert isinstance(header, dict)
        assert sum(map(len, values)) <= len(data)


@given(JSON)
def test_keys_and_timeouts_of_a_request(value: Any) -> None:
    with suppress(messages.MessageError):
        assert 0 < len(messages.check_key(value)) <= messages.MAX_KEY_CHARACTERS
    with suppress(messages.MessageError):
        assert 0 <= messages.check_timeout(value) <= messages.MAX_TIMEOUT_S
    if isinstance(value, list):
        with suppress(messages.MessageError):
            assert all(messages.check_key(key) == key for key in messages.check_keys(value))


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(-1, 99), st.binary(max_size=20))),
    st.data(),
)
def test_frames_between_launcher_and_agent(
    frames: list[tuple[Kind, int, bytes]], data: st.DataObject
) -> None:
    stream = data.draw(bytes_like(st.just(b"".join(encode(*frame) for frame in frames))))
    decoder = Decoder()
    with suppress(PipeError):
        for frame in decoder.feed(stream):
            assert frame.kind in Kind
            assert len(frame.payload) <= len(stream)


def json_like(valid: dict[str, Any] | list[Any]) -> st.SearchStrategy[bytes]:
    """A right document with a field changed or missing, damaged text, or any JSON."""
    fields = valid if isinstance(valid, dict) else {}

    def without_field(name: str) -> bytes:
        return json.dumps({key: value for key, value in fields.items() if key != name}).encode()

    changed = st.builds(
        lambda name, value: json.dumps({**fields, name: value}).encode(),
        st.sampled_from([*fields, "more"]),
        JSON,
    )
    without = st.builds(
        lambda name: json.dumps(
            {key: value for key, value in fields.items() if key != name}
        ).encode(),
        st.sampled_from([*fields, "none"]),
    )
    whole = JSON.map(lambda value: json.dumps(value).encode())
    return st.one_of(changed, without, whole, bytes_like(st.just(json.dumps(valid).encode())))


@given(json_like(json.loads(JOB.to_json())))
def test_the_job_of_an_agent(text: bytes) -> None:
    with suppress(StartError):
        job = AgentJob.from_json(text)
        assert len(job.secret) == 32
        assert AgentJob.from_json(job.to_json()) == job


@given(json_like(json.loads(INFO.to_json())))
def test_what_a_rank_publishes(text: bytes) -> None:
    with suppress(StartError):
        info = RankInfo.from_json(text)
        assert RankInfo.from_json(replace(info).to_json()) == info


@given(json_like([1e-5, 1.0, 2.0]), st.integers(1, 3))
def test_speeds_of_the_network(text: bytes, num_hosts: int) -> None:
    with suppress(StartError):
        assert len(LinkSpeeds.from_json(text, num_hosts).bytes_per_s) == num_hosts


HOSTS = st.from_regex(r"[a-z0-9@:.,\[\]= -]{0,40}", fullmatch=True)


@given(st.one_of(HOSTS, st.text(max_size=40)))
def test_lists_of_hosts(text: str) -> None:
    with suppress(UsageError):
        assert all(host.slots is None or host.slots > 0 for host in parse_hosts(text))


@given(st.one_of(st.lists(HOSTS).map("\n".join), st.text(max_size=80)))
def test_hostfiles(text: str) -> None:
    with suppress(UsageError):
        assert parse_hostfile(text, "hosts") or not text.strip()


@pytest.mark.parametrize(
    "name",
    [
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_START_TIMEOUT",
        "HOROVOD_TIMELINE",
        "HOROVOD_FUSION_THRESHOLD",
        "HOROVOD_THREAD_AFFINITY",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_CACHE_CAPACITY",
        "HOROVOD_LOG_LEVEL",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
    ],
)
@given(value=st.one_of(st.text(max_size=12), st.integers().map(str), st.floats().map(str)))
def test_settings(name: str, value: str) -> None:
    with suppress(StartError, UsageError):
        Config.from_env({name: value})
