"""horovodrun and horovod.run with real processes on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
from launcher import (
    DEADLINE_S,
    assert_all_gone,
    environment,
    horovodrun,
    launched,
    python,
)

import horovod
from horovod._rank.cores import computing_cores
from horovod.errors import RankFailedError

# A rank with a child in its process group, one in a session of its own, and a Python. Each tells
# the test that it runs by its line on stdout.
FAMILY = """
sleep 1000 &
setsid sleep 1000 &
echo up
exec "$0" -c 'import time; print("up", flush=True)
while True: time.sleep(0.1)'
"""
DEAF = "trap '' TERM; echo up; while :; do sleep 1000; done"


# -- output and environment


def test_lines_carry_rank_and_stream() -> None:
    code = "import os, sys; print(os.environ['HOROVOD_RANK']); print('é', file=sys.stderr)"
    run = horovodrun("-np", "2", *python(code))
    assert run.process.returncode == 0
    assert sorted(run.lines["stdout"]) == ["[0]<stdout>:0", "[1]<stdout>:1"]
    assert sorted(run.lines["stderr"]) == ["[0]<stderr>:é", "[1]<stderr>:é"]


def test_ranks_share_the_cores_of_their_host_unless_the_user_says_otherwise() -> None:
    code = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['TF_NUM_INTRAOP_THREADS'])"
    share = max(1, computing_cores() // 3)
    run = horovodrun("-np", "3", "--verbose", *python(code), OMP_NUM_THREADS="")
    assert sorted(run.lines["stdout"]) == [f"[{rank}]<stdout>:{share} {share}" for rank in range(3)]
    (said,) = [line for line in run.lines["stderr"] if "OMP_NUM_THREADS" in line]
    assert "localhost: 3 ranks share " in said
    run = horovodrun("-np", "2", *python(code), OMP_NUM_THREADS="7", TF_NUM_INTRAOP_THREADS="8")
    assert sorted(run.lines["stdout"]) == ["[0]<stdout>:7 8", "[1]<stdout>:7 8"]
    assert run.lines["stderr"] == []


def test_files_and_timestamps(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = horovodrun(
        *("-np", "1", "--output-filename", str(out), "--prefix-output-with-timestamp"),
        *("sh", "-c", "printf 'no end'; echo error >&2"),
    )
    assert (out / "rank.0/stdout").read_text() == "no end"
    assert (out / "rank.0/stderr").read_text() == "error\n"
    assert re.fullmatch(
        r"\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\[0\]<stdout>:no end", *run.lines["stdout"]
    )


def test_two_hosts_that_are_this_machine() -> None:
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
    show = " ".join(f"$HOROVOD_{name}" for name in names)
    run = horovodrun("-np", "3", "-H", "localhost:1,127.0.0.1:2", "sh", "-c", f"echo {show}")
    assert sorted(run.lines["stdout"]) == [
        "[0]<stdout>:0 3 0 1 0 2 localhost",
        "[1]<stdout>:1 3 0 2 1 2 127.0.0.1",
        "[2]<stdout>:2 3 1 2 0 1 127.0.0.1",
    ]


def test_flags_reach_the_ranks_and_unset_flags_leave_variables_alone() -> None:
    run = horovodrun(
        *("-np", "1", "--fusion-threshold-mb", "2"),
        *("sh", "-c", "echo $HOROVOD_FUSION_THRESHOLD $HOROVOD_CYCLE_TIME $MINE"),
        HOROVOD_CYCLE_TIME="5",
        MINE="a b",
    )
    assert run.lines["stdout"] == ["[0]<stdout>:2097152 5 a b"]


def test_much_output_arrives_complete() -> None:
    code = "import sys\nfor i in range(30000): print('x' * 99, i)"
    run = horovodrun("-np", "2", *python(code))
    expected = sorted(f"[{rank}]<stdout>:{'x' * 99} {i}" for rank in (0, 1) for i in range(30000))
    assert sorted(run.lines["stdout"]) == expected


def test_a_reader_that_leaves_ends_the_job() -> None:
    command = f"{sys.executable} -m horovod.runner.cli -np 1 yes | head -n 1"
    pipe = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert pipe.stdout.splitlines() == ["[0]<stdout>:y", "141"]
    assert pipe.stderr == ""


def test_the_command_has_an_empty_stdin() -> None:
    assert horovodrun("-np", "1", "cat").process.returncode == 0


# -- the secret


def test_the_secret_is_in_a_private_file_only() -> None:
    with launched("-np", "2", "sh", "-c", "echo at $HOROVOD_SECRET_FILE; sleep 1000") as launcher:
        line, _ = launcher.wait_lines("stdout", "at ", 2)
        path = Path(line.partition("at ")[2])
        secret = path.read_bytes()
        assert len(secret) == 32
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        processes = [psutil.Process(launcher.process.pid), *launcher.descendants()]
        assert len(processes) >= 5
        for process in processes:
            for name in ("cmdline", "environ"):
                shown = Path(f"/proc/{process.pid}/{name}").read_bytes()
                assert secret not in shown
                assert secret.hex().encode() not in shown
        launcher.process.terminate()
        assert launcher.wait() == 143
    assert not path.parent.exists()


# -- failures


def test_the_first_failure_ends_the_job_and_is_named() -> None:
    script = 'if [ $HOROVOD_RANK = 1 ]; then echo "cause of it" >&2; exit 7; else sleep 1000; fi'
    with launched("-np", "2", "sh", "-c", script) as launcher:
        assert launcher.wait() == 7
        assert launcher.elapsed_s < 60, "rank 0 sleeps for 1000 s"
    assert re.fullmatch(
        r"horovodrun: the job ran for [\d.]+ s: rank 1 exited with code 7 first; "
        r"rank 0 was stopped",
        launcher.lines["stderr"][-2],
    )
    assert launcher.lines["stderr"][-1] == "horovodrun: rank 1 on localhost exited with code 7"
    assert launcher.stderr.count("cause of it") == 1  # it can still be seen


def test_a_cause_that_others_have_pushed_off_the_screen_is_printed_again() -> None:
    script = """
        [ $HOROVOD_RANK = 0 ] || { echo "cause of it" >&2; exit 7; }
        trap 'for i in $(seq 100); do echo $i; done; exit 0' TERM
        sleep 1000 & wait
    """
    run = horovodrun("-np", "2", "sh", "-c", script)
    assert run.process.returncode == 7
    assert run.stderr.endswith(
        "horovodrun: rank 1 on localhost exited with code 7; the last lines of its stderr:\n"
        "    cause of it"
    )


def test_a_killed_rank() -> None:
    script = "if [ $HOROVOD_RANK = 1 ]; then kill -KILL $$; else sleep 1000; fi"
    run = horovodrun("-np", "2", "sh", "-c", script)
    assert run.process.returncode == 137
    assert "rank 1 on localhost was killed by SIGKILL; was it out of memory?" in run.stderr
    assert run.elapsed_s < 60, "rank 0 sleeps for 1000 s"


def test_ranks_that_fail_because_of_another_are_not_blamed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = """
    if [ $HOROVOD_RANK = 0 ]; then echo 'PeerLostError: rank 1' >&2; echo >"$0"; exit 1; fi
    read line <"$0"; echo 'ValueError: mine' >&2; exit 3
    """
    run = horovodrun("-np", "2", "sh", "-c", script, str(fifo))
    assert run.process.returncode == 3
    assert "rank 1 on localhost exited with code 3" in run.lines["stderr"][-1]


@pytest.mark.slow
def test_ranks_that_ignore_sigterm_are_killed_in_time() -> None:
    script = f"if [ $HOROVOD_RANK = 1 ]; then date +%s.%N; exit 3; fi; {DEAF}"
    with launched("-np", "2", "sh", "-c", script) as launcher:
        assert launcher.wait() == 3
        ended_s = time.time()
    failed_s = float(launcher.wait_lines("stdout", r":\d+\.\d+$")[0].rpartition(":")[2])
    assert ended_s - failed_s < 10


def test_an_early_exit_with_0_is_no_failure() -> None:
    script = "if [ $HOROVOD_RANK = 0 ]; then exit 0; fi; sleep 0.5; echo late"
    run = horovodrun("-np", "2", "sh", "-c", script)
    assert run.process.returncode == 0
    assert run.lines["stdout"] == ["[1]<stdout>:late"]


@pytest.mark.parametrize("before", ["", "hvd.init(); hvd.shutdown(); "])
def test_an_exit_before_init_ends_the_wait_of_the_others(before: str) -> None:
    code = (
        "import os, sys, horovod._rank.context as hvd\n"
        f"{before}os.environ['HOROVOD_RANK'] == '1' and sys.exit(0)\nhvd.init()"
    )
    run = horovodrun("-np", "3", *python(code), HOROVOD_START_TIMEOUT="85")
    assert run.process.returncode == 1
    assert run.elapsed_s < 80, "the start timeout is 85 s"
    what = "another hvd.init()" if before else "hvd.init()"
    expected = f"rank 1 on localhost exited with code 0 before {what}"
    assert f"horovodrun: {expected}, and ranks 0, 2 waited for it in init" in run.stderr
    assert any("StartError" in line and expected in line for line in run.lines["stderr"])


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["no-such-command"], 127, "the command 'no-such-command' was not found"),
        (["/nowhere/x"], 127, "the command '/nowhere/x' was not found"),
        (["A=1", "cmd"], 127, "was not found; to set a variable, write: env A=1 cmd"),
        (["train.py"], 127, "the command 'train.py' was not found; write 'python train.py'"),
        (["--timeline-filename", "no/t.json", "true"], 2, "no; make it, or name another file"),
        (["--log-level", "loud", "true"], 2, "invalid choice: 'LOUD'"),
        (["/etc/passwd"], 126, "the command '/etc/passwd' cannot be executed"),
        (["--unknown"], 2, "unknown option --unknown"),
        ([], 2, "no command was given"),
        (["-H", "localhost:1", "true"], 2, "2 ranks were requested, but only 1 slot is"),
    ],
)
def test_mistakes_cost_one_line(command: list[str], code: int, message: str) -> None:
    run = horovodrun("-np", "2", *command)
    assert run.process.returncode == code
    assert len(run.lines["stderr"]) == 1
    assert message in run.stderr


def test_a_setting_that_makes_no_sense_costs_one_line() -> None:
    run = horovodrun("-np", "2", "true", HOROVOD_CPU_OPERATIONS="foo")
    assert run.process.returncode == 1
    assert len(run.lines["stderr"]) == 1
    assert "HOROVOD_CPU_OPERATIONS='foo' is none of native, gloo, mpi" in run.stderr


def test_who_reads_only_the_first_line_sees_no_traceback() -> None:
    words = [sys.executable, "-m", "horovod.runner.cli", "doctor", "--help"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            words,
            env=environment(),
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("module", ["horovod", "horovod.runner.launch"])
def test_the_launcher_as_a_module(module: str) -> None:
    words = [sys.executable, "-m", module, "-np", "1", "echo", "-np", "hi"]
    done = subprocess.run(
        words, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]<stdout>:-np hi\n", "")


# -- nobody is left behind


@pytest.mark.parametrize("np", [1, 2])
def test_nothing_survives_the_sigkill_of_the_launcher(np: int) -> None:
    with launched("-np", str(np), "sh", "-c", FAMILY, sys.executable) as launcher:
        launcher.wait_lines("stdout", "up", 2 * np)
        family = launcher.descendants()
        assert len(family) == 2 + 3 * np
        launcher.process.kill()
        assert_all_gone(family, 10)


@pytest.mark.parametrize("victim", [0, 1], ids=["guard", "agent"])
def test_nothing_survives_the_sigkill_of_the_agent(victim: int) -> None:
    with launched("-np", "2", "sh", "-c", FAMILY, sys.executable) as launcher:
        launcher.wait_lines("stdout", "up", 4)
        guard = psutil.Process(launcher.process.pid).children()[0]
        family = launcher.descendants()
        directory = Path(guard.children()[0].children()[0].environ()["HOROVOD_SECRET_FILE"]).parent
        (guard, guard.children()[0])[victim].kill()
        assert_all_gone(family, 10)
        assert launcher.wait() == 1
        assert "the agent of localhost" in launcher.stderr
    assert not directory.exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_survives_an_agent_that_was_stopped(signum: signal.Signals) -> None:
    with launched("-np", "2", "--grace", "0.1", "sh", "-c", FAMILY, sys.executable) as launcher:
        launcher.wait_lines("stdout", "up", 4)
        family = launcher.descendants()
        agent = psutil.Process(launcher.process.pid).children()[0].children()[0]
        directory = Path(agent.children()[0].environ()["HOROVOD_SECRET_FILE"]).parent
        agent.suspend()
        launcher.process.send_signal(signum)
        assert launcher.process.wait(DEADLINE_S) in (143, -signal.SIGKILL)
        assert_all_gone(family, 10)
    assert not directory.exists()


def test_background_processes_end_with_their_rank() -> None:
    with launched("-np", "1", "sh", "-c", "setsid sleep 1000 & echo pid $!") as launcher:
        pid = int(launcher.wait_lines("stdout", "pid ")[0].split()[-1])
        assert launcher.wait() == 0
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_stop_the_job(signum: signal.Signals, code: int) -> None:
    with launched("-np", "2", "sh", "-c", FAMILY, sys.executable) as launcher:
        launcher.wait_lines("stdout", "up", 4)
        family = launcher.descendants()
        launcher.process.send_signal(signum)
        assert launcher.wait() == code
        assert_all_gone(family, 5)
    assert f"stopped by {signum.name}" in launcher.stderr


def test_a_second_ctrl_c_kills_at_once() -> None:
    with launched("-np", "2", "--verbose", "sh", "-c", DEAF) as launcher:
        launcher.wait_lines("stdout", "up", 2)
        family = launcher.descendants()
        began_s = time.monotonic()
        launcher.process.send_signal(signal.SIGINT)
        launcher.wait_lines("stderr", "stopping the ranks")
        launcher.process.send_signal(signal.SIGINT)
        assert launcher.wait() == 130
        assert time.monotonic() - began_s < 20, "the grace is 30 s"
        assert_all_gone(family, 5)


def test_an_idle_job_uses_no_cpu() -> None:
    with launched("-np", "2", "sh", "-c", "echo up; sleep 1000") as launcher:
        launcher.wait_lines("stdout", "up", 2)
        processes = [psutil.Process(launcher.process.pid), *launcher.descendants()]

        def switches() -> int:
            return sum(process.num_ctx_switches().voluntary for process in processes)

        def switches_in_a_second() -> int:
            before = switches()
            # The length of the observation, not a wait for something to happen.
            threading.Event().wait(1.0)
            return switches() - before

        # On a busy machine, what belongs to the start may last for some seconds.
        assert any(switches_in_a_second() < 10 for _ in range(10))


# -- horovod.run


def place(offset: int, *, name: str = "rank") -> tuple[str, int]:
    return name, offset + int(os.environ["HOROVOD_RANK"])


@pytest.mark.parametrize("np", [1, 3])
def test_results_stand_in_the_order_of_ranks(np: int) -> None:
    results = horovod.run(place, args=(10,), kwargs={"name": "r"}, num_proc=np)
    assert results == [("r", 10 + rank) for rank in range(np)]


def test_none_is_a_result() -> None:
    def only_rank_1() -> str | None:
        return "one" if os.environ["HOROVOD_RANK"] == "1" else None

    assert horovod.run(only_rank_1, num_proc=3) == [None, "one", None]


def test_sys_exit_0_is_a_result_too() -> None:
    assert horovod.run(lambda: sys.exit(0), num_proc=1) == [None]


def test_an_exception_comes_back_with_its_traceback() -> None:
    def fail() -> None:
        raise ValueError("only here")

    with pytest.raises(RankFailedError, match="ValueError: only here") as caught:
        horovod.run(fail)
    error = caught.value
    assert (error.rank, error.host, error.exit_code, error.signal) == (0, "localhost", 1, None)
    assert ", in fail\n" in error.traceback
    assert "rank 0 on localhost" in str(error)
    assert isinstance(error, RuntimeError)


def test_one_rank_raises_while_the_other_sleeps() -> None:
    def fail_on_1() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("mine")
        time.sleep(120)

    began_s = time.monotonic()
    with pytest.raises(RankFailedError, match="KeyError: 'mine'") as caught:
        horovod.run(fail_on_1, num_proc=2)
    assert time.monotonic() - began_s < 60
    assert caught.value.rank == 1


def test_a_rank_that_dies_without_a_word() -> None:
    with pytest.raises(
        RankFailedError, match="rank 0 on localhost was killed by SIGKILL"
    ) as caught:
        horovod.run(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert (caught.value.signal, caught.value.exit_code) == ("SIGKILL", 137)
    assert caught.value.traceback == ""
    with pytest.raises(RankFailedError, match="before its function returned"):
        horovod.run(lambda: os._exit(0))


def test_a_result_that_cannot_be_sent() -> None:
    with pytest.raises(RankFailedError, match="pickle"):
        horovod.run(threading.Lock)


def test_from_another_thread_the_signal_handlers_stay() -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    before = handlers()
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(horovod.run(pow, (2, 5), num_proc=2)))
    thread.start()
    thread.join(DEADLINE_S)
    assert seen == [[32, 32]]
    assert handlers() == before


def test_a_function_of_main_and_ctrl_c(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import horovod, time\n"
        "def work():\n"
        "    print('up', flush=True)\n"
        "    while True: time.sleep(0.1)\n"
        "try:\n"
        "    horovod.run(work, num_proc=2)\n"
        "except KeyboardInterrupt:\n"
        "    print('caught', flush=True)\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment(), stdout=pipe, stderr=pipe, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)].count("") == 0
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert out == "caught\n"
    assert_all_gone(family, 5)


def test_inside_a_running_event_loop() -> None:
    import asyncio

    async def cell() -> list[Any]:
        return horovod.run(pow, (2, 3), num_proc=1)

    assert asyncio.run(cell()) == [8]


def test_output_filename_of_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    horovod.run(print, ("hello",), num_proc=1, output_filename=str(tmp_path))
    assert (tmp_path / "rank.0/stdout").read_text() == "hello\n"
    assert "[0]<stdout>:hello" in capfd.readouterr().out


def test_executable_and_old_names() -> None:
    with pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc") as caught:
        assert horovod.run(pow, (2, 2), np=2, executable=sys.executable) == [4, 4]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert horovod.run(pow, (2, 2), use_gloo=True, disable_cache=True) == [4]


def test_importing_horovod_loads_no_framework_and_no_launcher() -> None:
    code = (
        "import sys, horovod; print(horovod.__version__);"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'tensorflow')"
        " or m.startswith('horovod.')]); horovod.run;"
        "print('torch' in sys.modules, 'horovod._native' in sys.modules)"
    )
    shown = subprocess.run(
        python(code), env=environment(), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert shown.stdout.splitlines() == [horovod.__version__, "[]", "False False"], shown.stderr


EARLY = """
import array, sys
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod._native import Buffer
context.init()
group = context.global_group()
for step in range(100):
    if (group.rank, step) == (1, 10):
        sys.exit()
    values = array.array("q", [step])
    view = Buffer.from_array(values)
    group.allreduce((view,), (view,), PLAIN_SUM, name="x", keep=values).wait()
"""


@pytest.mark.parametrize("words", [[], ["--min-np", "1", "-H", "localhost:3"]])
def test_a_rank_that_ends_well_in_the_middle_fails_the_job(words: list[str]) -> None:
    launcher = horovodrun("-np", "3", *words, *python(EARLY))
    assert launcher.wait() == 1
    assert re.search(r"rank 1 .*on localhost (exited|ended) with code 0", launcher.stderr)


def test_the_end_of_a_failed_job_is_kept_for_a_report(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "HOROVOD_KEEP_REPORTS": ""}
    run = horovodrun("-np", "2", *python("raise SystemExit(3)"), **env)
    assert run.process.returncode == 3
    (report,) = (tmp_path / ".horovod" / "reports").iterdir()
    assert "exited with code 3" in report.read_text()
    assert horovodrun("-np", "1", *python("pass"), **env).process.returncode == 0
    env["HOROVOD_KEEP_REPORTS"] = "0"
    assert horovodrun("-np", "1", *python("1/0"), **env).process.returncode == 1
    assert len(list(report.parent.iterdir())) == 1
