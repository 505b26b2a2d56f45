"""Jobs on hosts that are reached through a real sshd; the hosts are network namespaces."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from cluster import Cluster, entered
from launcher import environment, python
from ssh_hosts import SshHosts, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher import Launcher

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

ROOT = Path(__file__).resolve().parents[2]
DIGITS = [sys.executable, str(ROOT / "examples" / "pytorch" / "digits.py"), "--epochs", "2"]
SUM = [sys.executable, str(Path(__file__).with_name("summing_rank.py"))]
# Ranks on two busy cores that load torch take their time.
PATIENT = {"HOROVOD_START_TIMEOUT": "90"}
ALL = ("-np", "4", "-H", "host0:2,host1:2")
GONE_S = 10.0

SLEEPER = python(
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
    "print('asleep', os.getpid(), flush=True)\n"
    "while True: time.sleep(0.1)"
)

# Fills every pipe between its host and the launcher.
TALKER = python(
    "import os\nprint('asleep', os.getpid(), flush=True)\nwhile True: print('x' * 100, flush=True)"
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path_factory.mktemp("ssh")) as ssh_hosts:
        yield ssh_hosts


def pids_of(launcher: Launcher, count: int) -> dict[int, int]:
    """The processes of the ranks, once all of them sleep."""
    lines = launcher.wait_lines("stdout", r"asleep \d+", count)
    found = [re.fullmatch(r"\[(\d+)\]<stdout>:asleep (\d+)", line) for line in lines]
    return {int(match[1]): int(match[2]) for match in found if match}


def test_the_digits_example_trains_on_two_hosts(hosts: SshHosts) -> None:
    job = hosts.horovodrun(*ALL, *DIGITS, **PATIENT)
    assert job.process.returncode == 0, job.stderr
    text = "\n".join(job.lines["stdout"])
    assert "on 4 rank(s)" in text, text
    hosts.assert_nothing_runs(GONE_S)


def test_hosts_may_be_addresses_and_have_users(hosts: SshHosts) -> None:
    job = hosts.horovodrun("-np", "4", "-H", "10.77.0.1:2,root@10.77.0.2:2", *SUM, **PATIENT)
    assert job.process.returncode == 0, job.stderr
    assert sorted(job.lines["stdout"]) == [f"[{rank}]<stdout>:sum 10.0" for rank in range(4)]
    hosts.assert_nothing_runs(GONE_S)


def test_the_ranks_know_their_place_and_get_the_variables_of_the_launcher(hosts: SshHosts) -> None:
    code = (
        "import os; e = os.environ\n"
        "print([e[f'HOROVOD_{n}'] for n in ('HOSTNAME', 'RANK', 'LOCAL_RANK', 'CROSS_RANK')],"
        "e['ODD'] == 'a\"b $c\\n', e['HOROVOD_GLOO_IFACE'], e['NCCL_SOCKET_IFNAME'],"
        "e.get('CUDA_VISIBLE_DEVICES'), os.getcwd() == e['THERE'])"
    )
    env = {"ODD": 'a"b $c\n', "CUDA_VISIBLE_DEVICES": "3", "THERE": os.getcwd()}
    job = hosts.horovodrun(*ALL, *python(code), **env)
    assert job.process.returncode == 0, job.stderr
    assert sorted(job.lines["stdout"]) == [
        f"[{rank}]<stdout>:['host{host}', '{rank}', '{local}', '{host}'] True eth0 eth0 None True"
        for rank, host, local in [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    ]


def test_inside_a_slurm_allocation_no_host_need_be_named(hosts: SshHosts) -> None:
    env = {"SLURM_JOB_NODELIST": "host[0-1]", "SLURM_TASKS_PER_NODE": "2,1"}
    code = "import os; print(os.environ['HOROVOD_HOSTNAME'])"
    job = hosts.horovodrun(*python(code), **env)
    assert job.process.returncode == 0, job.stderr
    assert sorted(job.lines["stdout"]) == [
        f"[{rank}]<stdout>:host{host}" for rank, host in [(0, 0), (1, 0), (2, 1)]
    ]


def test_horovod_run_calls_a_function_on_all_hosts(hosts: SshHosts) -> None:
    code = "import horovod; print(horovod.run(pow, (2, 5), num_proc=3, hosts='host0:2,host1:1'))"
    with entered(hosts.cluster.hosts[0].namespace):
        done = subprocess.run(
            python(code),
            env=environment(**hosts.environment, **PATIENT),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.stdout == "[32, 32, 32]\n", done.stderr
    hosts.assert_nothing_runs(GONE_S)


def test_nothing_secret_is_seen_in_process_lists_and_logs(hosts: SshHosts) -> None:
    code = (
        "import os, time\n"
        "print('asleep', open(os.environ['HOROVOD_SECRET_FILE'], 'rb').read().hex(), flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    marker = "a-token-that-nobody-may-see"
    with hosts.launched("--verbose", *ALL, *python(code), env={"API_TOKEN": marker}) as launcher:
        lines = launcher.wait_lines("stdout", "asleep", 4)
        (secret,) = {line.split()[-1] for line in lines}
        assert len(secret) == 64
        seen = "\n".join(" ".join(words) for words in command_lines())
        assert "horovod.runner.agent" in seen
        launcher.process.send_signal(signal.SIGINT)
        launcher.wait()
    for text in (seen, launcher.stderr):
        assert secret not in text
        assert marker not in text


def command_lines() -> list[list[str]]:
    found = []
    for process in psutil.process_iter():
        try:
            found.append(process.cmdline())
        except psutil.Error:
            continue  # it ended meanwhile
    return found


# -- hosts that cannot be used


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-H", "host0:1,nowhere.invalid:1"], "host nowhere.invalid: its name is unknown"),
        (["-H", "host0:1,host1:1", "-p", "2222"], "the connection was refused"),
        (["-H", "host0:1,host1:1", "--ssh-identity-file", "KEY"], "permission was denied"),
        (["-H", "host0:1,host1:1", "--network-interfaces", "ib7"], "no network interface 'ib7'"),
    ],
)
def test_a_bad_host_costs_one_line(hosts: SshHosts, words: list[str], message: str) -> None:
    words = [hosts.stranger_key if word == "KEY" else word for word in words]
    if "--ssh-identity-file" in words:
        authorized = Path(hosts.stranger_key).with_name("authorized_keys")
        keys = authorized.read_text()
        authorized.write_text("")
    try:
        job = hosts.horovodrun("-np", "2", *words, "true")
    finally:
        if "--ssh-identity-file" in words:
            authorized.write_text(keys)
    assert job.process.returncode == 1
    assert message in job.stderr
    # One line for each, below a headline if there are two.
    assert len(job.lines["stderr"]) == (1 if "nowhere.invalid" in job.stderr else 3), job.stderr
    hosts.assert_nothing_runs(GONE_S)


def test_all_bad_hosts_are_named_at_once(hosts: SshHosts) -> None:
    names = [f"nowhere{index}.invalid:1" for index in range(4)]
    job = hosts.horovodrun("-np", "5", "-H", ",".join(["host0:1", *names]), "true")
    assert job.process.returncode == 1
    assert "cannot start on 4 hosts:" in job.stderr
    for index in range(4):
        assert re.search(rf"^    nowhere{index}.invalid: its name is unknown", job.stderr, re.M)
    hosts.assert_nothing_runs(GONE_S)


# -- what ends a job


def test_a_rank_that_fails_is_named_and_ends_the_job(hosts: SshHosts) -> None:
    with hosts.launched(*ALL, *SLEEPER) as launcher:
        pids = pids_of(launcher, 4)
        os.kill(pids[3], signal.SIGKILL)
        began_s = time.monotonic()
        assert launcher.wait() == 128 + signal.SIGKILL
        hosts.assert_nothing_runs(began_s + GONE_S - time.monotonic())
        assert "rank 3 on host1 was killed by SIGKILL" in launcher.stderr


def test_a_connection_that_is_lost_ends_the_ranks_on_both_sides(hosts: SshHosts) -> None:
    with hosts.launched(*ALL, *SLEEPER) as launcher:
        pids_of(launcher, 4)
        began_s = time.monotonic()
        hosts.cut_sessions(1)
        assert launcher.wait() == 1
        hosts.assert_nothing_runs(began_s + GONE_S - time.monotonic())
        assert "the agent of host1 is gone: the connection was lost" in launcher.stderr


def test_a_launcher_that_is_killed_leaves_nothing(hosts: SshHosts) -> None:
    with hosts.launched(*ALL, *SLEEPER) as launcher:
        pids_of(launcher, 4)
        launcher.process.kill()
        began_s = time.monotonic()
        launcher.wait()
        hosts.assert_nothing_runs(began_s + GONE_S - time.monotonic())


def test_ctrl_c_ends_the_job_on_all_hosts(hosts: SshHosts) -> None:
    with hosts.launched(*ALL, *SLEEPER) as launcher:
        pids_of(launcher, 4)
        launcher.process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        assert launcher.wait() == 128 + signal.SIGINT
        hosts.assert_nothing_runs(began_s + GONE_S - time.monotonic())
        assert "stopped by SIGINT" in launcher.stderr


@pytest.mark.parametrize("command", [SLEEPER, TALKER], ids=["silent", "talking"])
def test_a_host_that_vanishes_ends_the_ranks_on_both_sides(
    command: list[str], tmp_path: Path
) -> None:
    """No packet tells of it, neither to the launcher nor to the agent on that host."""
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path) as hosts:  # noqa: SIM117
        with hosts.launched(*ALL, *command) as launcher:
            pids_of(launcher, 4)
            cluster.cut(1)
            began_s = time.monotonic()
            assert launcher.wait() == 1
            assert "the agent of host1 is gone: the connection was lost" in launcher.stderr
            hosts.assert_nothing_runs(began_s + GONE_S - time.monotonic())


def test_a_launcher_that_is_stopped_loses_no_host(hosts: SshHosts) -> None:
    """Ctrl-Z, or a console that takes nothing: longer than the silence that counts as a loss."""
    code = "import time; print('asleep 1', flush=True); time.sleep(9); print('done')"
    with hosts.launched(*ALL, *python(code)) as launcher:
        launcher.wait_lines("stdout", "asleep", 4)
        launcher.process.send_signal(signal.SIGSTOP)
        time.sleep(8.0)  # what is tested is that this time changes nothing
        launcher.process.send_signal(signal.SIGCONT)
        assert launcher.wait() == 0, launcher.stderr
