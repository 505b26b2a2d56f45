"""Ranks that meet over a store of PyTorch: who starts the engine, shares it, and ends it."""

from __future__ import annotations

import array
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist

from horovod._native import Buffer
from horovod._rank import by_store
from horovod._rank.by_store import Lease, start_by_store
from horovod._rank.job_context import Context
from horovod._rank.reduction import PLAIN_SUM
from horovod.errors import HorovodInternalError, StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from pathlib import Path

    from horovod._job.lent_store import LentStore

SIZE = 3
TIMEOUT_S = 60.0


@pytest.fixture
def store() -> LentStore:
    by_store._rounds.clear()
    return dist.PrefixStore("default_pg", dist.HashStore())


def on_ranks(act: Callable[[int, Context], Any], size: int = SIZE) -> list[Any]:
    """Run a function as several ranks, each in a context of its own."""
    contexts = [Context() for _ in range(size)]

    def run(rank: int) -> Any:
        with contexts[rank].use():
            return act(rank, contexts[rank])

    try:
        with ThreadPoolExecutor(size) as pool:
            return [each.result(TIMEOUT_S) for each in [pool.submit(run, r) for r in range(size)]]
    finally:
        for context in contexts:
            context.end()


def total(lease: Lease) -> float:
    values = array.array("d", [lease.config.rank + 1.0])
    buffer = Buffer.from_array(values)
    lease.group.allreduce([buffer], [buffer], PLAIN_SUM, name="total").wait()
    return values[0]


def test_ranks_meet_and_find_their_hosts(store: LentStore) -> None:
    def act(rank: int, context: Context) -> tuple[float, int, int, bool]:
        lease = start_by_store(store, rank, SIZE, TIMEOUT_S)
        found = total(lease), lease.config.local_rank, lease.config.cross_size, lease.is_shared
        assert context.has_job
        lease.group.barrier().wait()
        lease.close()
        lease.close()
        assert not context.has_job
        return found

    assert on_ranks(act) == [(6.0, rank, 1, False) for rank in range(SIZE)]


def test_an_engine_ends_with_its_last_holder(store: LentStore) -> None:
    def act(rank: int, context: Context) -> None:
        first = start_by_store(store, rank, SIZE, TIMEOUT_S)
        context.init()
        second = start_by_store(store, rank, SIZE, TIMEOUT_S)
        assert second.is_shared
        assert second.engine is first.engine
        for end in (first.close, context.shutdown):
            end()
            assert context.has_job
            assert total(second) == 6.0
        second.group.barrier().wait()
        second.close()
        assert not context.has_job
        again = start_by_store(store, rank, SIZE, TIMEOUT_S)
        assert again.engine is not first.engine
        assert total(again) == 6.0
        again.group.barrier().wait()

    on_ranks(act)


def test_init_keeps_the_engine_beyond_the_process_group(store: LentStore) -> None:
    def act(rank: int, context: Context) -> None:
        lease = start_by_store(store, rank, SIZE, TIMEOUT_S)
        context.init()
        lease.close()
        assert total(lease) == 6.0
        lease.group.barrier().wait()
        context.shutdown()
        with pytest.raises(HorovodInternalError):
            total(lease)

    on_ranks(act)


def test_an_engine_that_only_some_have_is_refused(store: LentStore) -> None:
    def act(rank: int, context: Context) -> None:
        lease = start_by_store(store, rank, SIZE, TIMEOUT_S)
        lease.group.barrier().wait()
        if rank > 0:
            with Context().use(), pytest.raises(StartError, match="does not run in rank"):
                start_by_store(store, rank, SIZE, TIMEOUT_S)
        else:
            assert start_by_store(store, rank, SIZE, TIMEOUT_S).is_shared

    on_ranks(act)


def test_a_rank_that_never_comes_is_named(store: LentStore) -> None:
    with pytest.raises(StartError, match=r"rank 1, 2 of 3 never came"):
        start_by_store(store, 0, SIZE, 0.2)
    with pytest.raises(StartError, match="look for the errors of rank 0"):
        start_by_store(dist.HashStore(), 1, SIZE, 0.2)


def test_one_rank_needs_no_store(store: LentStore) -> None:
    lease = start_by_store(store, 0, 1, TIMEOUT_S)
    assert total(lease) == 1.0
    lease.close()
    with pytest.raises(UsageError, match=r"rank=1 is not in 0 … 0"):
        start_by_store(store, 1, 1, TIMEOUT_S)


def test_what_a_killed_job_left_in_a_file_matches_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    killed = dist.FileStore(path, -1)
    for rank in range(SIZE):
        killed.set(f"horovod/0/here/{rank}", "another host/0")
    killed.set("horovod/0/opening", '{"shared": "", "one_host": true}')
    killed.set("horovod/0/notice", '{"socket": "horovod-gone"}')
    by_store._rounds.clear()

    def act(rank: int, context: Context) -> float:
        if rank == 0:
            time.sleep(0.2)  # the others find what is old first
        lease = start_by_store(dist.FileStore(path, -1), rank, SIZE, TIMEOUT_S)
        result = total(lease)
        lease.group.barrier().wait()
        return result

    assert on_ranks(act) == [6.0] * SIZE


class Recording:
    """A store that keeps all that ever was in it."""

    def __init__(self) -> None:
        self.store = dist.HashStore()
        self.values: list[str] = []

    def set(self, key: str, value: str) -> None:
        self.values.append(value)
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.store.wait(keys, timeout)

    def delete_key(self, key: str) -> bool:
        return self.store.delete_key(key)


@pytest.mark.parametrize("hosts", ["one host", "several hosts", "several hosts, secret given"])
def test_where_the_secret_travels(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, secret = Recording(), "5e" * 32
    if hosts != "one host":
        names = iter(f"host {number}" for number in range(SIZE))
        monkeypatch.setattr("horovod._job.lent_store.host_key", lambda _: next(names))
    if hosts.endswith("given"):
        monkeypatch.setenv("HOROVOD_SECRET_KEY", secret)
    secrets: list[str] = []

    def act(rank: int, context: Context) -> None:
        lease = start_by_store(store, rank, SIZE, TIMEOUT_S)
        secrets.append(lease.config.secret_key)
        lease.group.barrier().wait()

    on_ranks(act)
    assert len(set(secrets)) == 1
    assert (secrets[0] == secret) == hosts.endswith("given")
    written = " ".join(store.values)
    texts = [bytes.fromhex(word) for word in written.replace('"', " ").split() if is_hex(word)]
    travels = any(secrets[0].encode() in text for text in texts)
    assert travels == (hosts == "several hosts")
    assert not store.store.check(["horovod/0/notice"])


@pytest.fixture
def local_store() -> LentStore:
    by_store._rounds.clear()
    server = dist.TCPStore("localhost", 0, None, True, wait_for_workers=False)
    return dist.PrefixStore("default_pg", server)


def test_a_rank_follows_no_stranger_that_writes_into_a_store_of_this_host(
    local_store: LentStore,
) -> None:
    local_store.set("horovod/0/opening", '{"shared": "", "one_host": false}')
    local_store.set("horovod/0/notice", '{"text": "7b7d"}')
    with pytest.raises(StartError, match="rank 0 published an address for several hosts"):
        start_by_store(local_store, 1, 2, TIMEOUT_S)


def test_rank_0_writes_no_secret_into_a_store_of_this_host(local_store: LentStore) -> None:
    local_store.set("horovod/0/here/1", "another host/0")
    with pytest.raises(StartError, match="ranks came from 2 places: give all ranks HOROVOD_SECRET"):
        start_by_store(local_store, 0, 2, TIMEOUT_S)
    assert not local_store.check(["horovod/0/notice"])  # type: ignore[attr-defined]


def test_ranks_meet_over_a_store_of_this_host() -> None:
    by_store._rounds.clear()
    server = dist.TCPStore("localhost", 0, None, True, wait_for_workers=False)

    def act(rank: int, context: Context) -> float:
        store = dist.TCPStore("localhost", server.port, None, False)
        lease = start_by_store(store, rank, SIZE, TIMEOUT_S)
        result = total(lease)
        lease.group.barrier().wait()
        return result

    assert on_ranks(act) == [6.0] * SIZE


def is_hex(word: str) -> bool:
    return len(word) > 100 and all(digit in "0123456789abcdef" for digit in word)
