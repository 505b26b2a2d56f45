"""``horovodrun --node-rank`` on every host, without ssh."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster, entered, why_not
from launcher import Launcher, assert_all_gone, free_port, launched, python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
DIGITS = [sys.executable, str(ROOT / "examples" / "pytorch" / "digits.py"), "--epochs", "2"]
WHY_NO_HOSTS = why_not()
PATIENT = {"HOROVOD_START_TIMEOUT": "90"}
GONE_S = 10.0

SLEEPER = python("import os, time; print('asleep', os.getpid(), flush=True); time.sleep(100)")


@contextmanager
def nodes(
    command: Sequence[str],
    num_proc: int = 4,
    namespaces: Sequence[str] = ("", ""),
    address: str = "127.0.0.1",
    keys: Sequence[str] = (),
    words: Sequence[str] = (),
    ranks: Sequence[int] = (),
) -> Iterator[list[Launcher]]:
    """A launcher on each host; the last one is started first."""
    key = secrets.token_hex(32)
    with ExitStack() as stack:
        port = stack.enter_context(free_port())
        launchers = []
        for index in reversed(range(len(namespaces))):
            place = entered(namespaces[index]) if namespaces[index] else nullcontext()
            line = ["-np", str(num_proc), "--num-nodes", str(len(namespaces)), "--node-rank"]
            line += [
                str(ranks[index] if ranks else index),
                "--rendezvous",
                f"{address}:{port}",
                *words,
                *command,
            ]
            env = {**PATIENT, "HOROVOD_SECRET_KEY": keys[index] if keys else key}
            with place:
                launchers.append(stack.enter_context(launched(*line, **env)))
        yield launchers[::-1]


def test_ranks_know_their_place_and_no_key() -> None:
    code = (
        "import os; e = os.environ\n"
        "print(*(e[f'HOROVOD_{n}'] for n in ('RANK', 'SIZE', 'LOCAL_RANK', 'CROSS_RANK')),"
        "'HOROVOD_SECRET_KEY' in e)"
    )
    with nodes(python(code)) as launchers:
        assert [launcher.wait() for launcher in launchers] == [0, 0], launchers[0].stderr
        lines = sorted(line for launcher in launchers for line in launcher.lines["stdout"])
    assert lines == [f"[{rank}]<stdout>:{rank} 4 {rank % 2} {rank // 2} False" for rank in range(4)]


@pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)
def test_the_digits_example_trains_on_two_hosts() -> None:
    with Cluster(2) as cluster:
        spaces = [host.namespace for host in cluster.hosts]
        with nodes(DIGITS, 4, spaces, cluster.hosts[0].address) as launchers:
            texts = [(launcher.wait(150.0), launcher.stderr) for launcher in launchers]
            assert [code for code, _ in texts] == [0, 0], texts
            output = "\n".join(launchers[0].lines["stdout"])
            assert "on 4 rank(s)" in output, output


def asleep(launchers: Sequence[Launcher]) -> list[int]:
    """The processes of all ranks, once they sleep."""
    lines = [line for each in launchers for line in each.wait_lines("stdout", "asleep", 2)]
    return [int(line.split()[-1]) for line in lines]


def test_a_rank_that_fails_ends_all_nodes() -> None:
    with nodes(SLEEPER) as launchers:
        pids = asleep(launchers)
        families = [process for each in launchers for process in each.descendants()]
        os.kill(pids[2], signal.SIGKILL)
        began_s = time.monotonic()
        assert [launcher.wait() for launcher in launchers] == [128 + signal.SIGKILL] * 2
        assert_all_gone(families, began_s + GONE_S - time.monotonic())
        for launcher in launchers:
            assert "was killed by SIGKILL" in launcher.stderr
        assert "node 1 (" in launchers[0].stderr


def test_a_node_that_follows_does_not_hide_the_first_failure(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        "[ $HOROVOD_CROSS_RANK = 0 ] || { echo 'PeerLostError: rank 0 was lost' >&2; exit 1; }\n"
        "[ $HOROVOD_RANK = 0 ] || exec sleep 100\n"
        f"until [ -e '{go}' ]; do sleep 0.05; done; exit 3"
    )
    with nodes(["sh", "-c", script]) as launchers:
        launchers[1].wait_lines("stderr", "PeerLostError", 2)
        go.touch()
        assert [launcher.wait() for launcher in launchers] == [3, 3]
        for launcher in launchers:
            assert any(
                "rank 0 on " in line and "exited with code 3" in line
                for line in launcher.lines["stderr"][-2:]
            ), launcher.stderr


SAVER = python(
    "import time\n"
    "try:\n"
    "    print('asleep 0', flush=True)\n"
    "    while True: time.sleep(0.1)\n"
    "except KeyboardInterrupt: time.sleep(0.5); print('saved', flush=True)"
)


@pytest.mark.parametrize("chosen", [0, 1])
def test_ctrl_c_at_one_node_reaches_the_ranks_of_all(chosen: int) -> None:
    with nodes(SAVER) as launchers:
        asleep(launchers)
        launchers[chosen].process.send_signal(signal.SIGINT)
        assert [launcher.wait() for launcher in launchers] == [130, 130]
        for index, launcher in enumerate(launchers):
            assert [line[-5:] for line in launcher.lines["stdout"][-2:]] == ["saved"] * 2
            told = "stopped by SIGINT" if index == chosen else f"node {chosen} ("
            assert told in launcher.lines["stderr"][-1]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_launcher_that_is_killed_ends_all_nodes(victim: int) -> None:
    with nodes(SLEEPER) as launchers:
        asleep(launchers)
        families = [process for each in launchers for process in each.descendants()]
        launchers[victim].process.kill()
        began_s = time.monotonic()
        assert launchers[1 - victim].wait() == 1
        assert_all_gone(families, began_s + GONE_S - time.monotonic())
        said = launchers[1 - victim].stderr
    expected = "the connection to node 0 was lost" if victim == 0 else "its launcher is gone"
    assert expected in said


def test_another_secret_is_refused() -> None:
    keys = [secrets.token_hex(32), secrets.token_hex(32)]
    with nodes(["true"], keys=keys, words=["--start-timeout", "10"]) as launchers:
        assert [launcher.wait() for launcher in launchers] == [1, 1]
    assert "node 1 of 2 never came to the store of node 0" in launchers[0].stderr
    assert "Authentication failed for connections from 127.0.0.0/8" in launchers[0].stderr
    assert "node 0 was not met at 127.0.0.1" in launchers[1].stderr
    assert "authentication failed: the store at 127.0.0.1" in launchers[1].stderr
    for launcher in launchers:
        assert "set the same HOROVOD_SECRET_KEY" in launcher.stderr
        assert "firewall" not in launcher.stderr


def test_a_node_rank_that_is_given_twice_is_named_on_all_hosts() -> None:
    with nodes(["true"], 3, ranks=(0, 1, 1), namespaces=("", "", "")) as launchers:
        assert [launcher.wait() for launcher in launchers] == [1, 1, 1]
        for launcher in launchers:
            assert launcher.elapsed_s < 80, "the start timeout is 90 s"
    twins = {launcher.process.pid for launcher in launchers[1:]}
    for launcher in launchers:
        found = re.search(r"node 1 is there twice: on .*", launcher.stderr)
        assert found is not None, launcher.stderr
        assert {int(pid) for pid in re.findall(r"\(process (\d+)\)", found[0])} == twins
        assert "(--node-rank)" in found[0]


@pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)
def test_nothing_is_left_10_s_after_a_cut() -> None:
    with Cluster(2) as cluster:
        spaces = [host.namespace for host in cluster.hosts]
        with nodes(SLEEPER, 4, spaces, cluster.hosts[0].address) as launchers:
            asleep(launchers)
            families = [process for each in launchers for process in each.descendants()]
            cluster.cut(1)
            began_s = time.monotonic()
            assert_all_gone(families, GONE_S)
            codes = [launcher.wait(began_s + GONE_S - time.monotonic()) for launcher in launchers]
    assert codes == [1, 1]
    assert "its launcher is gone, or cannot be reached" in launchers[0].stderr
    assert "the connection to node 0 was lost" in launchers[1].stderr


def test_a_rank_that_ends_before_init_is_named_on_the_other_node() -> None:
    code = (
        "import os, horovod._rank.context as hvd\nos.environ['HOROVOD_RANK'] == '1' or hvd.init()"
    )
    with nodes(python(code), 2) as launchers:
        assert launchers[0].wait() == 1
        assert launchers[0].elapsed_s < 80, "the start timeout is 90 s"
        launchers[1].wait()
    expected = "exited with code 0 before hvd.init()"
    assert any("rank 1 on " in line and expected in line for line in launchers[0].lines["stderr"])
