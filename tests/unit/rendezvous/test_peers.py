"""Connecting ranks: threads stand for ranks, a memfd and an eventfd for the native port."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from strangers import GARBAGE, knock, send_all, was_thrown_out

from horovod._rendezvous import HOSTS_KEY, StoreClient, StoreServer, make_secret
from horovod._rendezvous.handshake import Hello, pack_hello
from horovod._rendezvous.incarnation import Incarnation
from horovod._rendezvous.link_speed import LinkSpeeds
from horovod._rendezvous.local import connect_unix, receive_inbox
from horovod._rendezvous.peers import Connections, connect_peers
from horovod._settings.config import Config
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class FakePort:
    """Holds descriptors as the native port does, and a mark to recognize the memory by."""

    def __init__(self, num_local: int, local_index: int) -> None:
        self.num_local = num_local
        self.local_index = local_index
        self.segment_fd = os.memfd_create("segment", os.MFD_CLOEXEC)
        self.doorbell_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        os.close(self.segment_fd)
        os.close(self.doorbell_fd)


@dataclass(frozen=True)
class Job:
    server: StoreServer
    secret: bytes
    hosts: Sequence[str]
    timeout_s: float = 10.0
    num_streams: int = 1
    elastic: bool = False

    def config(self, rank: int) -> Config:
        return Config(
            rank=rank,
            size=len(self.hosts),
            hostname=self.hosts[rank],
            start_timeout_s=self.timeout_s,
            num_streams=self.num_streams,
            elastic=self.elastic,
        )

    def join(
        self, rank: int, count: int = 0, version: str = "1", **changes: int
    ) -> Connections[FakePort]:
        config = self.config(rank)
        for name, value in changes.items():
            object.__setattr__(config, name, value)
        with StoreClient(self.server.address, self.server.port, self.secret) as store:
            incarnation = Incarnation(0, count)
            free_port = 4321 if rank == 0 else 0
            return connect_peers(
                config, self.secret, store, FakePort, incarnation, version, free_port
            )


@contextmanager
def joined(job: Job, count: int = 0) -> Iterator[list[Connections[FakePort]]]:
    """All ranks, connected; closed afterward."""
    with ThreadPoolExecutor(len(job.hosts)) as threads, ExitStack() as cleanup:
        futures = [threads.submit(job.join, rank, count) for rank in range(len(job.hosts))]
        ranks = []
        for future in futures:
            ranks.append(future.result())
            cleanup.callback(ranks[-1].close)
        yield ranks


def errors_of(work: Sequence[Callable[[], Connections[FakePort]]]) -> list[str]:
    """Runs ranks that must all fail and returns their messages."""
    with ThreadPoolExecutor(len(work)) as threads:
        futures: list[Future[Connections[FakePort]]] = [threads.submit(rank) for rank in work]
    messages = []
    for future in futures:
        error = future.exception()
        assert isinstance(error, StartError), error
        messages.append(str(error))
    return messages


def assert_connected(left: int, right: int) -> None:
    """Two descriptors are the two ends of one connection."""
    with socket.socket(fileno=os.dup(left)) as here, socket.socket(fileno=os.dup(right)) as there:
        here.setblocking(True)
        there.settimeout(30)
        here.sendall(b"ping")
        assert there.recv(4, socket.MSG_WAITALL) == b"ping"
        assert not os.get_inheritable(left)
        there.setblocking(False)
        here.setblocking(False)


def test_ranks_of_one_host_exchange_their_ports(server: StoreServer, secret: bytes) -> None:
    with joined(Job(server, secret, ["a"] * 4)) as ranks:
        for rank, mine in enumerate(ranks):
            assert mine.port is not None
            assert (mine.port.num_local, mine.port.local_index) == (4, rank)
            assert [peer[:2] for peer in mine.local_peers] == [
                (other, other) for other in range(4) if other != rank
            ]
            assert mine.remote_peers == ()
            assert mine.rank_names == (f"a:{os.getpid()}",) * 4
            assert mine.master == ("127.0.0.1", 4321)
            for other, _, segment_fd, doorbell_fd, _ in mine.local_peers:
                port = ranks[other].port
                assert port is not None
                assert os.path.sameopenfile(segment_fd, port.segment_fd)
                os.eventfd_write(doorbell_fd, 1)
                assert os.eventfd_read(port.doorbell_fd) == 1
                assert not os.get_inheritable(segment_fd)
                assert not os.get_inheritable(doorbell_fd)


def test_liveness_sockets_join_the_right_ranks_and_tell_the_end(
    server: StoreServer, secret: bytes
) -> None:
    with joined(Job(server, secret, ["a"] * 3)) as ranks:
        liveness = {
            (rank, peer[0]): peer[4] for rank, mine in enumerate(ranks) for peer in mine.local_peers
        }
        for here, there in liveness:
            assert_connected(liveness[here, there], liveness[there, here])


@pytest.mark.parametrize("num_streams", [1, 3])
def test_ranks_of_different_hosts_open_a_control_and_several_data_connections(
    server: StoreServer, secret: bytes, num_streams: int
) -> None:
    job = Job(server, secret, ["a", "b", "c", "d"], num_streams=num_streams)
    with joined(job) as ranks:
        links = {}
        for rank, mine in enumerate(ranks):
            assert mine.port is None
            assert mine.local_peers == ()
            assert [peer[0] for peer in mine.remote_peers] == [r for r in range(4) if r != rank]
            for peer, control, data in mine.remote_peers:
                assert len(data) == num_streams
                links[rank, peer] = (control, *data)
        for here, there in links:
            for left, right in zip(links[here, there], links[there, here], strict=True):
                assert_connected(left, right)
                with socket.socket(fileno=os.dup(left)) as sock:
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                    limit_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                    # Data may wait for a stopped process as long as it takes.
                    assert limit_ms == (15_000 if left == links[here, there][0] else 0)
                    silence_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                    interval_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                    num_probes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
                    assert silence_s + interval_s * num_probes == 15
                assert not os.get_blocking(left)


def test_ranks_of_elastic_jobs_give_up_a_silent_host_soon(
    server: StoreServer, secret: bytes
) -> None:
    with joined(Job(server, secret, ["a", "b"], elastic=True)) as ranks:
        for mine in ranks:
            ((_, control, data),) = mine.remote_peers
            with socket.socket(fileno=os.dup(control)) as sock:
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 4_000
                silence_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                interval_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                num_probes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
                assert silence_s + interval_s * num_probes == 4
            with socket.socket(fileno=os.dup(data[0])) as sock:
                # A stopped process is no lost host.
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_ranks_must_agree_on_the_number_of_streams(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a", "b"])
    messages = errors_of([lambda: job.join(0), lambda: job.join(1, num_streams=2)])
    assert all("disagree on HOROVOD_NUM_STREAMS" in message for message in messages)


def test_a_mixed_job_counts_local_ranks_in_the_order_of_ranks(
    server: StoreServer, secret: bytes
) -> None:
    with joined(Job(server, secret, ["a", "b", "a", "b"])) as ranks:
        assert [[peer[:2] for peer in mine.local_peers] for mine in ranks] == [
            [(2, 1)],
            [(3, 1)],
            [(0, 0)],
            [(1, 0)],
        ]
        assert [[peer[0] for peer in mine.remote_peers] for mine in ranks] == [
            [1, 3],
            [0, 2],
            [1, 3],
            [0, 2],
        ]
        assert all(mine.hosts == (0, 1, 0, 1) for mine in ranks)
        assert len({mine.speeds for mine in ranks}) == 1
        assert ranks[0].speeds.latency_s > 0
        assert len(ranks[0].speeds.bytes_per_s) == 2
        assert min(ranks[0].speeds.bytes_per_s) > 0


def test_every_order_of_arrival_works(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a", "a", "b"])
    for count, order in enumerate(([0, 1, 2], [2, 1, 0], [1, 2, 0])):
        with ThreadPoolExecutor(3) as threads:
            futures = []
            for rank in order:
                futures.append(threads.submit(job.join, rank, count))
                # Wait until this rank has announced itself (the last one cannot be waited for).
                if rank != order[-1]:
                    server.get(f"peers/0.{count}/rank/{rank}", 10.0)
        for future in futures:
            future.result().close()


def test_rounds_of_one_job_leave_nothing_behind(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a", "a", "b"])
    for count in range(3):
        with joined(job, count):
            pass
    assert server.try_get("peers/0.1/rank/0") is None
    assert server.try_get("peers/0.2/rank/0") is not None


def test_a_job_of_one_rank_needs_no_store(secret: bytes) -> None:
    alone = connect_peers(Config(hostname="a"), secret, None, FakePort, Incarnation())
    assert alone == Connections(None, (), (), (f"a:{os.getpid()}",), (0,), LinkSpeeds())


def test_a_job_of_two_needs_a_store(secret: bytes) -> None:
    with pytest.raises(StartError, match="no connection to a store"):
        connect_peers(Config(size=2), secret, None, FakePort, Incarnation())


def test_a_rank_that_never_appears_is_named_on_all_ranks(
    server: StoreServer, secret: bytes
) -> None:
    server.set(HOSTS_KEY, json.dumps(["a", "a", "hostx", "a"]).encode())
    job = Job(server, secret, ["a"] * 4, timeout_s=1.5)
    for message in errors_of([lambda rank=rank: job.join(rank) for rank in (0, 1, 3)]):
        assert "1 rank of 4 never appeared within 1.5 s: 2 (hostx)" in message
        assert "--start-timeout" in message


def test_a_failure_of_one_rank_ends_the_wait_of_the_others(
    server: StoreServer, secret: bytes
) -> None:
    patient = Job(server, secret, ["a"] * 3, timeout_s=60.0)
    hasty = Job(server, secret, ["a"] * 3, timeout_s=1.5)
    start = time.monotonic()
    patient_message, hasty_message = errors_of([lambda: patient.join(0), lambda: hasty.join(1)])
    assert time.monotonic() - start < 50
    assert "never appeared within 1.5 s: 2" in hasty_message
    assert f"rank 1 (a:{os.getpid()}) could not start" in patient_message
    with pytest.raises(StartError, match=r"rank 2 of 3 .* rank 1 .* could not start"):
        patient.join(2)


def test_a_rank_that_dies_after_it_announced_itself_is_named(
    server: StoreServer, secret: bytes
) -> None:
    job = Job(server, secret, ["a", "b"], timeout_s=0.3)
    info = {"rank": 1, "size": 2, "host": "b", "pid": 77, "host_key": "b", "version": "1"}
    info.update(
        {
            "tcp_address": "127.0.0.1",
            "tcp_port": 1,
            "unix_name": "x",
            "num_streams": 1,
            "free_port": 0,
        }
    )
    server.set("peers/0.0/rank/1", json.dumps(info).encode())
    with pytest.raises(StartError, match=r"no connection came in time from 1 \(b:77\)"):
        job.join(0)
    info["rank"] = 0
    server.set("peers/0.1/rank/0", json.dumps(info).encode())
    with pytest.raises(StartError, match=r"cannot connect to rank 0 \(b:77\) at 127.0.0.1 port 1"):
        job.join(1, count=1)


def test_nonsense_in_the_store_is_a_start_error(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a", "b"])
    for count, text in enumerate((b"", b"[]", b"\xff", b'{"rank": 1}', b"[" * 100_000)):
        server.set(f"peers/0.{count}/rank/1", text)
        with pytest.raises(StartError, match="makes no sense"):
            job.join(0, count)


def test_a_rank_that_is_there_twice(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a"] * 3)
    messages = errors_of([lambda: job.join(1), lambda: job.join(1), lambda: job.join(0)])
    assert all("rank 1 is there twice" in message for message in messages)


def test_ranks_that_disagree_on_the_size(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a"] * 3)
    messages = errors_of([lambda: job.join(0), lambda: job.join(1, size=2)])
    for message in messages:
        assert "disagree on the size" in message
        assert "has 3" in message
        assert "has 2" in message


def test_ranks_with_different_versions(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a"] * 2)
    for message in errors_of([lambda: job.join(0), lambda: job.join(1, version="2")]):
        assert "different versions of Horovod" in message
        assert "has Horovod 1" in message or "has Horovod 2" in message


def test_a_rank_of_another_version_may_publish_other_facts(
    server: StoreServer, secret: bytes
) -> None:
    job = Job(server, secret, ["a", "b"])
    server.set("peers/0.0/rank/1", b'{"version": "9.0", "of_the_future": 1}')
    with pytest.raises(StartError, match=r"another rank has Horovod 9\.0, this process has 1: "):
        job.join(0)


def test_a_rank_that_began_more_often_is_explained(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a"] * 2, timeout_s=1.5)
    ahead = Job(server, secret, ["a"] * 2, timeout_s=2.0)
    message, _ = errors_of([lambda: job.join(0, count=1), lambda: ahead.join(1, count=2)])
    assert "1 [it has called init() 2 times, this rank once: " in message


def test_a_rank_of_another_generation_is_explained(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a"] * 2, timeout_s=0.3)
    server.set("peers/latest/1", b"3.1")
    (message,) = errors_of([lambda: job.join(0, count=1)])
    assert "1 [it was last seen in generation 3 of the job, this rank is in 0]" in message


def test_a_port_that_cannot_be_made_ends_all_ranks(server: StoreServer, secret: bytes) -> None:
    def fail(num_local: int, local_index: int) -> FakePort:
        raise MemoryError("no memory for the segment")

    job = Job(server, secret, ["a"] * 2, timeout_s=60.0)
    start = time.monotonic()

    def broken() -> Connections[FakePort]:
        with StoreClient(server.address, server.port, secret) as store:
            return connect_peers(job.config(1), secret, store, fail, Incarnation(), "1")

    with ThreadPoolExecutor(2) as threads:
        healthy_rank, broken_rank = threads.submit(job.join, 0), threads.submit(broken)
        assert isinstance(broken_rank.exception(), MemoryError)
        assert "no memory for the segment" in str(healthy_rank.exception())
    assert time.monotonic() - start < 50


def test_another_secret_never_gets_in(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a", "b"], timeout_s=10.0)

    def intruder() -> Connections[FakePort]:
        with StoreClient(server.address, server.port, secret) as store:
            return connect_peers(job.config(1), make_secret(), store, FakePort, Incarnation(), "1")

    victim, message = errors_of([lambda: job.join(0), intruder])
    assert "its secret differs" in message
    assert f"rank 1 (b:{os.getpid()}) could not start" in victim


def test_strangers_at_the_listeners_do_not_stop_the_job(server: StoreServer, secret: bytes) -> None:
    job = Job(server, secret, ["a", "a", "b"])
    with ThreadPoolExecutor(3) as threads, ExitStack() as cleanup:
        futures = [threads.submit(job.join, rank) for rank in (0, 1)]
        info = json.loads(server.get("peers/0.0/rank/0", 10.0))
        for garbage in GARBAGE.values():
            stranger = cleanup.enter_context(knock(info["tcp_address"], info["tcp_port"]))
            send_all(stranger, garbage)
            assert was_thrown_out(stranger)
        for hello in (
            Hello("store"),
            Hello("data", 1, 0, Incarnation(1)),  # of another generation
            Hello("data", 1, 0, Incarnation(0, 1)),  # of another life of this one
            Hello("data", 2, 1),  # meant for another rank
            Hello("data", 0, 0),  # from a rank that does not connect to us
            Hello("control", 3, 0),  # from a rank that does not exist
            Hello("local", 1, 0),  # not over TCP
        ):
            peer = cleanup.enter_context(knock(info["tcp_address"], info["tcp_port"]))
            peer.sendall(pack_hello(secret, hello, os.urandom(32)))
            assert was_thrown_out(peer)
        for _ in range(20):
            cleanup.enter_context(knock(info["tcp_address"], info["tcp_port"]))
        local_stranger = cleanup.enter_context(
            connect_unix(info["unix_name"], time.monotonic() + 30)
        )
        send_all(local_stranger, GARBAGE["http"])
        assert was_thrown_out(local_stranger)
        futures.append(threads.submit(job.join, 2))
        for future in futures:
            future.result().close()


def test_listeners_are_gone_when_all_ranks_are_connected(
    server: StoreServer, secret: bytes
) -> None:
    with joined(Job(server, secret, ["a", "b"])):
        info = json.loads(server.get("peers/0.0/rank/0", 1.0))
        with pytest.raises(ConnectionRefusedError):
            knock(info["tcp_address"], info["tcp_port"])
        with pytest.raises(ConnectionRefusedError):
            connect_unix(info["unix_name"], time.monotonic() + 30)


def test_thirty_two_ranks(server: StoreServer, secret: bytes) -> None:
    hosts = [f"host{rank // 8}" for rank in range(32)]
    with joined(Job(server, secret, hosts)) as ranks:
        assert {len(mine.local_peers) for mine in ranks} == {7}
        assert {len(mine.remote_peers) for mine in ranks} == {24}


@pytest.mark.parametrize("num_sent", [0, 1, 2])
def test_a_port_message_without_its_descriptors_is_refused(no_leak: None, num_sent: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        descriptors = [left.fileno()] * num_sent
        message = b"\0" * (7 if num_sent == 2 else 8)
        socket.send_fds(left, [message], descriptors)
        with pytest.raises(ConnectionResetError):
            receive_inbox(right, time.monotonic() + 30)


def test_a_port_message_with_too_many_descriptors_leaks_none(no_leak: None) -> None:
    left, right = socket.socketpair()
    with left, right:
        socket.send_fds(left, [b"\0" * 8], [left.fileno()] * 6)
        with suppress(ConnectionResetError):
            receive_inbox(right, time.monotonic() + 30).close()


def test_no_thread_is_left_by_name(server: StoreServer, secret: bytes) -> None:
    with joined(Job(server, secret, ["a", "b"])):
        names = [thread.name for thread in threading.enumerate()]
        assert "horovod-store" in names
        assert not [name for name in names if name.startswith("horovod-accept")]
