"""Ranks that no launcher of ours started find each other."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from horovod._job.bootstrap import Bootstrap
from horovod._rendezvous import StoreClient, StoreServer, make_secret
from horovod._rendezvous.incarnation import Incarnation, latest_key
from horovod._rendezvous.job_file import JobFile
from horovod._rendezvous.pmi import PmiSession
from horovod._rendezvous.reach import StoreEndpoint, reach
from horovod._rendezvous.reserved_port import reserve_port
from horovod._settings.config import Config
from horovod._settings.foreign_launchers import ForeignLauncher
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 60.0


def soon() -> float:
    return time.monotonic() + DEADLINE_S


# -- a text from rank 0 to all


class Hydra:
    """Speaks the protocol of mpirun with a few processes, as MPICH 5 does."""

    def __init__(self, size: int) -> None:
        self.pairs = [socket.socketpair() for _ in range(size)]
        self._barrier = threading.Barrier(size)
        self._values: dict[str, str] = {}
        self.num_ended = 0
        for ours, _ in self.pairs:
            threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock.makefile("rw") as file:
            for line in file:
                words = dict(word.split("=", 1) for word in line.split())
                file.write(self._answer(words) + "\n")
                file.flush()
                if words["cmd"] == "finalize":
                    break

    def _answer(self, words: dict[str, str]) -> str:
        match words["cmd"]:
            case "init":
                return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2"
            case "get_my_kvsname":
                return "cmd=my_kvsname rc=0 kvsname=kvs_1_0_vm"
            case "put":
                self._values[words["key"]] = words["value"]
                return "cmd=put_result rc=0"
            case "barrier_in":
                self._barrier.wait(DEADLINE_S)
                return "cmd=barrier_out tag=0"
            case "finalize":
                self.num_ended += 1
                return "cmd=finalize_ack rc=0"
            case _:
                value = self._values.get(words["key"])
                return "cmd=get_result rc=-1" if value is None else f"cmd=get_result value={value}"

    def __enter__(self) -> Hydra:
        return self

    def __exit__(self, *exception: object) -> None:
        for pair in self.pairs:
            for sock in pair:
                sock.close()


def test_pmi_brings_the_text_of_rank_0_to_all() -> None:
    texts = ["0123abc", None, None]
    with Hydra(3) as hydra, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(3))
        sessions = [
            stack.enter_context(closing(PmiSession(theirs.fileno()))) for _, theirs in hydra.pairs
        ]
        tasks = [
            pool.submit(session.share, text, soon())
            for text, session in zip(texts, sessions, strict=True)
        ]
        assert [task.result(DEADLINE_S) for task in tasks] == ["0123abc"] * 3
        # What follows is MPI's: the connection is open and blocking, and nothing of it was read.
        mpi = hydra.pairs[0][1]
        assert os.get_blocking(mpi.fileno())
        mpi.settimeout(DEADLINE_S)
        mpi.sendall(b"cmd=init\n")
        assert mpi.recv(100).startswith(b"cmd=response_to_init")
        assert hydra.num_ended == 0


def test_pmi_ends_with_the_process_and_does_not_mind_if_mpirun_is_gone() -> None:
    with Hydra(2) as hydra:
        for _, theirs in hydra.pairs:
            with closing(PmiSession(theirs.fileno())) as session:
                theirs.close()
                session.end()
        assert hydra.num_ended == 2
        with closing(PmiSession(hydra.pairs[0][0].fileno())) as session:
            session.end()


def test_pmi_that_does_not_help_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"cmd=response_to_init rc=-1\n")
    with theirs, closing(PmiSession(theirs.fileno())) as session:
        with pytest.raises(StartError, match="mpirun answered"):
            session.share(None, soon())
        ours.close()
        with pytest.raises(StartError, match=r"the process manager of mpirun did not help"):
            session.share(None, soon())
    with pytest.raises(StartError, match="did not help"):
        PmiSession(10_000)


def test_a_file_in_the_home_is_private(tmp_path: Path) -> None:
    file = JobFile("77-0/../x", tmp_path)
    file.write("one")
    assert file.path.parent == tmp_path / ".horovod" / "jobs"
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700
    assert file.read(soon()) == "one"
    file.path.chmod(0o644)
    with pytest.raises(StartError, match="must be closed to all other users"):
        file.read(soon())
    file.path.parent.chmod(0o755)
    with pytest.raises(StartError, match="must be closed to all other users"):
        file.write("two")


def test_a_file_that_does_not_come_is_missed(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"rank 0 did not write .*77-0 in time"):
        JobFile("77-0", tmp_path).read(time.monotonic() + 0.1)


# -- the way to the store


def test_the_way_that_proves_itself_is_taken() -> None:
    secret = make_secret()
    free = socket.create_server(("127.0.0.1", 0))
    closed = free.getsockname()
    free.close()
    with StoreServer(make_secret()) as other, StoreServer(secret) as store:
        strangers = [closed, (other.address, other.port)]
        way = reach([*strangers, (store.address, store.port)], secret, soon())
        assert way.endpoint == (store.address, store.port)
        assert way.stays_here
        with pytest.raises(StartError, match=r"cannot be reached: tried 127.0.0.1 port .*firewall"):
            reach([closed], secret, soon())
        assert other.wrong_secrets() == {"127.0.0.0/8": 1}
        assert store.wrong_secrets() == {}


def test_a_store_with_another_secret_is_told_from_one_that_cannot_be_reached() -> None:
    with StoreServer(make_secret()) as other:
        refused = rf"authentication failed: the store at 127.0.0.1 port {other.port} closed"
        with pytest.raises(StartError, match=refused) as caught:
            reach([(other.address, other.port)], make_secret(), soon())
    assert "HOROVOD_SECRET_KEY" in str(caught.value)
    assert "firewall" not in str(caught.value)


def test_a_program_that_says_something_else_does_not_share_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"\0" * 64)
                while connection.recv(1024):
                    pass

        answered = pool.submit(answer)
        with pytest.raises(StartError, match="authentication failed"):
            reach([listener.getsockname()], make_secret(), soon())
        answered.result(DEADLINE_S)


# -- bootstraps


def meet(configs: list[Config]) -> list[Config]:
    """Ranks that are threads meet; returns what they know then. The store is closed."""
    with ThreadPoolExecutor(len(configs)) as pool:
        tasks = [pool.submit(Bootstrap, config) for config in configs]
        bootstraps = [task.result(DEADLINE_S) for task in tasks]
    attended = [
        bootstrap.attend(config) for bootstrap, config in zip(bootstraps, configs, strict=True)
    ]
    secret = bytes.fromhex(attended[0].secret_key)
    with StoreClient(attended[1].rendezvous_addr, attended[1].rendezvous_port, secret) as store:
        store.set("key", b"value")
    for bootstrap in bootstraps:
        bootstrap.close()
    return attended


def test_ranks_meet_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    stale = JobFile("9-0", tmp_path)
    stale.write(b'{"endpoints": [["127.0.0.1", 9]], "secret": "00"}'.hex())
    launcher = ForeignLauncher("Slurm", "9-0", one_host=True)
    configs = [Config(rank=rank, size=3, foreign_launcher=launcher) for rank in range(3)]
    attended = meet(configs)
    assert len({(c.rendezvous_addr, c.rendezvous_port, c.secret_key) for c in attended}) == 1
    assert attended[0].rendezvous_addr == "127.0.0.1"
    assert not os.listdir(stale.path.parent)


@pytest.fixture
def port() -> Iterator[int]:
    """One that nobody else gets, but who asks for it by number."""
    with reserve_port() as reserved:
        yield int(reserved.getsockname()[1])


def test_ranks_meet_where_the_user_says(port: int) -> None:
    key = make_secret().hex()
    configs = [
        Config(rank=rank, size=2, bootstrap_address=("localhost", port), secret_key=key)
        for rank in (1, 0)
    ]
    attended = meet(configs[::-1])
    assert {(c.rendezvous_addr, c.rendezvous_port, c.secret_key) for c in attended} == {
        ("127.0.0.1", port, key)
    }


def test_a_twin_that_has_not_begun_to_wait_learns_it_too(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    """Rank 0 keeps its store open until everybody who has a place there knows."""
    point = ("127.0.0.1", port)
    key = make_secret().hex()
    claimed, rank_0_has_given_up = threading.Event(), threading.Event()
    set_value = StoreClient.set

    def set_late(self: StoreClient, name: str, value: bytes) -> None:
        if name == "bootstrap/place/1":
            claimed.set()
            rank_0_has_given_up.wait(0.3)
        set_value(self, name, value)

    monkeypatch.setattr(StoreClient, "set", set_late)

    def error(rank: int) -> str:
        config = Config(rank=rank, size=3, bootstrap_address=point, secret_key=key)
        with pytest.raises(StartError) as caught:
            Bootstrap(config)
        return str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        rank_0, first = pool.submit(error, 0), pool.submit(error, 1)
        rank_0.add_done_callback(lambda _: rank_0_has_given_up.set())
        assert claimed.wait(DEADLINE_S)
        second = pool.submit(error, 1)
        texts = {each.result(DEADLINE_S) for each in (rank_0, first, second)}
    assert len(texts) == 1
    assert "rank 1 is there twice" in texts.pop()


def test_a_rank_of_another_host_learns_of_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has met the store, and waits for the other ranks to connect."""
    free = socket.create_server(("127.0.0.1", 0))
    point = ("127.0.0.1", free.getsockname()[1])
    free.close()
    key = make_secret().hex()

    def config_of(rank: int) -> Config:
        return Config(rank=rank, size=3, bootstrap_address=point, secret_key=key)

    def error(rank: int) -> str:
        with pytest.raises(StartError) as caught:
            Bootstrap(config_of(rank))
        return str(caught.value)

    def reach_from_elsewhere(*arguments: Any) -> StoreEndpoint:
        way = reach(*arguments)
        is_elsewhere = threading.current_thread() is threading.main_thread()
        return replace(way, own_address="10.0.0.1") if is_elsewhere else way

    monkeypatch.setattr("horovod._job.bootstrap.reach", reach_from_elsewhere)
    start = Incarnation(0, 1)
    with ThreadPoolExecutor(2) as pool:
        rank_0 = pool.submit(error, 0)
        config = Bootstrap(config_of(1)).attend(config_of(1))  # on another host
        with StoreClient(*point, bytes.fromhex(key)) as store:
            assert store.wait_all(["bootstrap/place/0"], DEADLINE_S)
        monkeypatch.setattr("horovod.__version__", "1.99.0")
        refused = pool.submit(error, 2).result(DEADLINE_S)
        assert "rank 2" in refused
        assert "1.99.0" in refused
        assert not rank_0.done()  # rank 1 is still to come back
        with StoreClient(config.rendezvous_addr, config.rendezvous_port, bytes.fromhex(key)) as it:
            it.set(latest_key(1), str(start).encode())
            found = it.wait_all(["peers/never"], DEADLINE_S, start.failed_key)
        assert found == {start.failed_key: refused.encode()}
        assert rank_0.result(DEADLINE_S) == refused


def test_who_is_missing_is_named() -> None:
    config = Config(
        size=3,
        bootstrap_address=("127.0.0.1", 0),
        secret_key=make_secret().hex(),
        start_timeout_s=0.5,
        foreign_launcher=ForeignLauncher("Slurm", one_host=True),
    )
    with pytest.raises(StartError, match=r"rank 1, 2 of 3 never came to the store of rank 0"):
        Bootstrap(config)


def test_rank_0_that_is_missing_is_named() -> None:
    config = Config(
        rank=1,
        size=2,
        bootstrap_address=("127.0.0.1", 9),
        secret_key=make_secret().hex(),
        start_timeout_s=0.3,
    )
    with pytest.raises(StartError, match=r"rank 0 was not met at 127.0.0.1 port 9"):
        Bootstrap(config)


def test_a_starter_that_helps_in_no_way() -> None:
    config = Config(rank=1, size=2, foreign_launcher=ForeignLauncher("Kubernetes"))
    with pytest.raises(
        StartError, match=r"Kubernetes lends no way .* HOROVOD_RENDEZVOUS=host:port"
    ):
        Bootstrap(config)


def test_a_store_that_nobody_needs_at_other_addresses_closes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    monkeypatch.setattr("horovod._job.bootstrap.reachable_addresses", lambda: addresses)
    config = Config(size=1, foreign_launcher=ForeignLauncher("Slurm", "5-0"))

    def listening() -> set[tuple[str, int]]:
        return {
            connection.laddr
            for connection in psutil.Process().net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.ip in addresses
        }

    before = listening()  # of servers that other tests of this process have left to end
    bootstrap = Bootstrap(config)
    opened = [address for address, _ in listening() - before]
    assert opened == [bootstrap.attend(config).rendezvous_addr]
    bootstrap.close()
