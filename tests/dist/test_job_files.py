"""`horovodrun -f`: each process runs each line, and all wait for each other before the next."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster import Cluster
from launcher import DEADLINE_S, assert_all_gone, environment, horovodrun, launched, python
from ssh_hosts import SshHosts, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
WHY_NO_HOSTS = why_not()
PYTHON = shlex.quote(sys.executable)
SUM = f"{PYTHON} {shlex.quote(str(Path(__file__).with_name('summing_rank.py')))}"
# Trains until there is a file "end".
ELASTIC = f"{PYTHON} {shlex.quote(str(Path(__file__).with_name('driven_worker.py')))} end"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def job_file(*lines: Any, workers: str = "2", version: int = 1, **train: Any) -> str:
    """Writes a job file; JSON is YAML."""
    data = {"horovod": {"workers": json.loads(workers)}, "run": list(lines), **train}
    Path("job.yml").write_text(json.dumps({"version": version, "project": "p", "train": data}))
    return "job.yml"


def events(run: str = "1") -> list[dict[str, Any]]:
    lines = Path(f"output/p/{run}/events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def table_of(path: str) -> list[str]:
    """The runs of experiment 1."""
    return horovodrun("experiment", "status", "1", "-f", path).lines["stdout"]


def log(line: int, rank: int, run: str = "1", stream: str = "stdout") -> str:
    return Path(f"output/p/{run}/logs/line-{line:02}/rank.{rank}/{stream}").read_text()


def test_all_wait_for_each_other_and_lines_that_train_follow_one_another() -> None:
    stamp = "date +%s.%N; sleep 0.$HOROVOD_RANK; date +%s.%N"
    places = (
        'echo "$HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE"'
    )
    where = 'echo "$HOROVOD_RANK $HOROVOD_SIZE $EXPERIMENT_ID ${OUTPUT_DIR##*/output/} $LR_DECAY"'
    path = job_file(
        stamp,
        stamp,
        f"{places}; {where}; {SUM}",
        SUM,
        workers='{"count": 2, "processes": 2}',
        parameters={"lr-decay": [0.5]},
    )
    job = horovodrun("-f", path)
    assert job.process.returncode == 0, job.stderr
    times = [[log(line, rank).split() for rank in range(4)] for line in (1, 2)]
    assert max(float(end) for _, end in times[0]) <= min(float(begin) for begin, _ in times[1])
    for rank in range(4):
        assert log(3, rank).splitlines() == [f"{rank}/4 0/1", f"{rank} 4 1 p/1 0.5", "sum 10.0"]
        assert log(4, rank) == "sum 10.0\n"
    assert [each["event"] for each in events()] == [
        "run-started",
        *["line-started", *["rank-ended"] * 4, "line-ended"] * 4,
        "run-ended",
    ]
    ends = [each for each in events() if each["event"] == "rank-ended"]
    assert sorted((each["line"], each["rank"], each["exit_code"]) for each in ends) == [
        (line, rank, 0) for line in (1, 2, 3, 4) for rank in range(4)
    ]
    assert events()[-1]["state"] == "finished"


def test_the_first_failure_stops_everything() -> None:
    line = "test $HOROVOD_RANK = 2 || exec sleep 1000; echo enough >&2; exit 7"
    with launched("-f", job_file("true", line, "touch third", workers="3")) as job:
        assert job.wait() == 7, "the others sleep for longer"
    assert "horovodrun: rank 2 on localhost exited with code 7" in job.lines["stderr"]
    assert f"horovodrun: run 1: line 2 of 3 failed: {line}" in job.lines["stderr"]
    assert not Path("third").exists()
    ended = events()[-2]
    assert (ended["line"], ended["exit_code"], ended["rank"]) == (2, 7, 2)
    assert log(2, 2, stream="stderr") == "enough\n"


def test_a_failure_in_front_of_a_pipe_is_one_and_values_arrive_as_they_are() -> None:
    values = ["a b", "", "$(touch planted)"]
    path = job_file(
        'printf "<%s>" {{x}} "$X"', "(exit 7) | tee log", "touch third", parameters={"x": values}
    )
    job = horovodrun("-f", path)
    assert job.process.returncode == 7
    assert [log(1, 0, f"1/{run}") for run in (1, 2, 3)] == [f"<{x}><{x}>" for x in values]
    assert job.stderr.count("line 2 of 3 failed: (exit 7) | tee log") == 3
    assert not {"third", "planted"} & {each.name for each in Path().iterdir()}
    plan = horovodrun("experiment", "plan", "-f", path).lines["stdout"]
    assert '  line 1: printf "<%s>" \'$(touch planted)\' "$X"' in plan


@pytest.mark.parametrize(("shell", "code"), [("bash -c", 0), ("sh -e -c", 0), ("no-shell -c", 127)])
def test_a_file_may_name_another_shell(shell: str, code: int) -> None:
    job = horovodrun("-f", job_file("false | cat; echo $0 $HOROVOD_RANK", shell=shell, version=2))
    assert job.process.returncode == code, job.stderr
    if code:
        assert "the command 'no-shell' was not found" in job.stderr
        assert "train.shell can name a shell other than no-shell" in job.stderr
    else:
        assert [log(1, rank) for rank in range(2)] == [f"{shell.split()[0]} {n}\n" for n in (0, 1)]


def test_a_line_that_fails_is_started_again_and_some_lines_are_for_some_ranks() -> None:
    once = 'echo "$HOROVOD_RANK of $WORD" >> "$OUTPUT_DIR/once"'
    fails = "echo try; [ -e again ] || { touch again; exit 3; }"
    path = job_file(
        {"cmd": once, "on": "host"},
        {"cmd": fails, "on": "rank0"},
        "cat $OUTPUT_DIR/once",
        restarts=1,
        env={"WORD": "two"},
        version=2,
    )
    job = horovodrun("-f", path)
    assert job.process.returncode == 0, job.stderr
    assert "run 1: line 2 failed: it is restarted; 0 restart(s) remain" in job.stderr
    assert [log(3, rank) for rank in range(2)] == ["0 of two\n"] * 2
    folder = Path("output/p/1/logs")
    assert (folder / "line-02.2/rank.0/stdout").read_text() == log(2, 0) == "try\n"
    assert log(2, 1) == ""


@pytest.mark.slow
def test_results_are_those_of_the_attempt_that_finished() -> None:
    """Run 1 reports the best value and fails; then a smaller one. Run 2 reports NaN."""
    values = "{1: [9.0, 2.0, 3.0], 2: [float('nan')], 3: [1.0]}"
    report = "import horovod, os; n, attempt = {{n}}, int(os.environ['EXPERIMENT_ATTEMPT']); "
    report += f"horovod.report_result(x={values}[n][attempt - 1], **{{f'only{{attempt}}': 1}}); "
    report += (
        "print('line', os.environ['EXPERIMENT_LINE']); raise SystemExit(n == 1 and attempt < 3)"
    )
    path = job_file(
        "true",
        f'{PYTHON} -c "{report}"',
        workers="1",
        version=2,
        restarts=1,
        metrics={"x": "max"},
        parameters={"n": [1, 2, 3]},
    )
    job = horovodrun("-f", path)
    assert job.process.returncode == 1
    assert table_of(path)[-1] == "the best run is 1.3: x=1"
    rows = [re.split("  +", line) for line in table_of(path)[1:4]]
    assert [[row[1], row[2], row[4]] for row in rows] == [
        ["failed", "2", "x=2, only2=1"],
        ["finished", "1", "x=nan, only1=1"],
        ["finished", "1", "x=1, only1=1"],
    ]
    again = horovodrun("experiment", "train", "--resume", "1", "-f", path)
    assert again.process.returncode == 0, again.stderr
    assert table_of(path)[-1] == "the best run is 1.1: x=3"
    assert re.split("  +", table_of(path)[1])[1:5:3] == ["finished", "x=3, only3=1"]
    assert log(2, 0, "1/1") == "line 2\n"


def test_what_a_line_leaves_in_the_background_is_said_once() -> None:
    line = "sleep 1000 & echo begun"
    path = job_file("echo late > >(sleep 0.01; cat)", line, workers="1", parameters={"n": [1, 2]})
    job = horovodrun("-f", path)
    assert job.process.returncode == 0, job.stderr
    told = [each for each in job.lines["stderr"] if "background processes" in each]
    assert len(told) == 1, told
    what = "background processes that it left were ended"
    pattern = rf"run 1\.1: line 2: {what}: sleep \(process \d+\)"
    assert re.search(f"{pattern} on localhost$", told[0])
    assert [log(1, 0, f"1/{run}") for run in (1, 2)] == ["late\n"] * 2


# The limit of a file's size stands for the disk.
SMALL_DISK = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
os.execv(sys.executable, [sys.executable, "-m", "horovod.runner.cli", *sys.argv[1:]])
"""


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_run_whose_logs_are_cut_has_not_finished(concurrency: int) -> None:
    prints = "for i in $(seq 100); do printf '%0100d\\n' $i; done; echo end > end.{{n}}"
    path = job_file(
        prints, "touch second", workers="1", parameters={"n": [1, 2]}, concurrency=concurrency
    )
    words = [*python(SMALL_DISK), "-f", path, "-H", "localhost:2"]
    env = environment(PYTHONDONTWRITEBYTECODE="1")  # it would be cut, too
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1, done.stderr
    for run in (1, 2):
        cut = f"run 1.{run}: line 1: its logs are incomplete: cannot write"
        assert cut in done.stderr
        assert events(f"1/{run}")[-1]["state"] == "failed"
        assert Path(f"end.{run}").exists()  # the ranks went on to their end
    assert not Path("second").exists()


def test_what_is_installed_is_installed_once_on_each_host() -> None:
    path = job_file("cat one", install=["echo one >> one", 'echo "$HOROVOD_SIZE" >> one'])
    assert horovodrun("-f", path).process.returncode == 0
    assert [log(1, rank) for rank in range(2)] == ["one\n2\n"] * 2
    job = horovodrun("-f", job_file("true", install=["exit 5", "touch second"]))
    assert job.process.returncode == 5
    assert "train.install failed: no line was started" in job.stderr
    assert [each["event"] for each in events("2")] == [
        "install-started", "install-ended", "run-started", "run-ended",
    ]  # fmt: skip
    assert not Path("second").exists()


def test_a_run_that_takes_too_long_is_ended() -> None:
    path = job_file("exec sleep 1000", "touch second", timeout="1s", restarts=3, version=2)
    with launched("-f", path) as job:
        assert job.wait() == 124
    assert "the run has taken 1 s, which is its timeout" in job.stderr
    assert "run 1: line 1 of 2 failed: exec sleep 1000" in job.stderr
    assert (events()[-1]["state"], events()[-1]["exit_code"]) == ("failed", 124)
    assert not Path("second").exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is not installed")
def test_a_search_ends_runs_that_others_surpass() -> None:
    report = f'{PYTHON} -c "import horovod; horovod.report_result(x={{{{x}}}})"'
    # Of four runs, only one that is the best so far may go on.
    path = job_file(
        report,
        "best=$(cat best || echo 0); [ $X -gt $best ] || exec sleep 1000; echo $X > best",
        workers="1",
        version=2,
        search={"method": "asha", "runs": 4, "seed": 3},
        metrics={"x": "max"},
        parameters={"x": {"between": {"min": 1, "max": 1000000}}},
    )
    job = horovodrun("-f", path)
    assert job.process.returncode == 0, job.stderr
    chosen = [int(x) for x in re.findall(r"run 1.\d: x=(\d+)", job.stderr)]
    best = [n == 0 or x > max(chosen[:n]) for n, x in enumerate(chosen)]
    assert {*best} == {True, False}
    *rows, last = table_of(path)[1:]
    assert [row.split()[1] for row in rows] == ["finished" if each else "pruned" for each in best]
    winner = chosen.index(max(chosen))
    assert last == f"the best run is 1.{winner + 1}: x={chosen[winner]}"


def test_an_elastic_line_goes_on_without_a_rank() -> None:
    prepare = {"cmd": 'echo "$HOROVOD_RANK of $HOROVOD_SIZE"', "on": "rank0"}
    elastic = {"min": 2, "max": 3}
    last = {"cmd": "echo last", "on": "host"}
    path = job_file(prepare, ELASTIC, last, workers="3", version=2, elastic=elastic)
    plan = horovodrun("experiment", "plan", "-f", path, "-H", "localhost:3")
    assert "3 ranks\n  at the beginning; then from 2 to 3\n" in "\n".join(plan.lines["stdout"])
    with launched("-f", path, "-H", "localhost:3") as job:
        begun = job.wait_lines("stdout", r"rank \d of 3 is \d+", 3)
        os.kill(int(begun[0].split(" is ")[1].split()[0]), signal.SIGKILL)
        job.wait_lines("stdout", r"rank \d of 2 is \d+", 2)
        Path("end").touch()
        assert job.wait() == 0, job.stderr
    assert job.lines["stdout"][0].endswith("0 of 3")
    assert sum("ends after True with 2" in line for line in job.lines["stdout"]) == 2
    assert len([line for line in job.lines["stdout"] if line.endswith("last")]) == 1


def test_an_elastic_line_finds_its_hosts() -> None:
    Path("end").touch()
    path = job_file(ELASTIC, version=2, elastic={"min": 1})
    job = horovodrun("-f", path, "--host-discovery-script", "echo localhost:2")
    assert job.process.returncode == 0, job.stderr
    assert sum("ends after" in line for line in job.lines["stdout"]) == 2


def test_ctrl_c_ends_the_line_and_starts_none_of_the_others() -> None:
    path = job_file("echo asleep; exec sleep 1000", "touch second", parameters={"n": [1, 2]})
    with launched("-f", path) as job:
        job.wait_lines("stdout", "asleep", 2)
        family = job.descendants()
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 128 + signal.SIGINT
        assert_all_gone(family, 10)
    assert events("1/1")[-1]["state"] == "killed"
    assert not Path("output/p/1/2").exists()
    assert not Path("second").exists()


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    path = job_file(
        "test {{n}} != 1", "echo $N", parameters={"n": {"range": dict(min=0, max=2, step=1)}}
    )
    job = horovodrun("-f", path)
    assert job.process.returncode == 1
    said = "\n".join(job.lines["stderr"])
    assert re.findall(r"(\d)  +(finished|failed) .*n=(\d)", said) == [
        ("1", "finished", "0"),
        ("2", "failed", "1"),
        ("3", "finished", "2"),
    ]
    assert [log(2, 0, f"1/{run}") for run in (1, 3)] == ["0\n", "2\n"]
    again = horovodrun("-f", job_file("true"))
    assert again.process.returncode == 0
    assert events("2")[-1]["state"] == "finished"


def test_what_is_wrong_is_said_before_anything_starts() -> None:
    path = job_file("touch started", resources={"gpu": 1})
    for words in (["-f", path], ["experiment", "validate", "-f", path]):
        job = horovodrun(*words)
        assert job.process.returncode == 2
        assert 'train.resources.gpu: unknown key; did you mean "gpus"?' in job.stderr
    job = horovodrun("-f", job_file("true"), "-np", "2")
    assert "not for job files (-f)" in job.stderr
    job = horovodrun("-f", job_file("true", resources={"gpus": 1000}))
    assert "asks for 2 workers with 1000 GPUs each, but this machine has" in job.stderr
    job = horovodrun("-f", job_file("true"), "-H", "localhost:1")
    assert job.process.returncode == 2
    Path("output").write_text("")
    job = horovodrun("-f", job_file("touch started"))
    assert "cannot write the output of the experiment" in job.stderr
    assert not Path("started").exists()


def test_a_file_that_was_written_is_right_and_its_plan_is_told() -> None:
    assert horovodrun("experiment", "init").process.returncode == 0
    assert horovodrun("experiment", "init").process.returncode == 2
    job = horovodrun("experiment", "validate")
    assert job.process.returncode == 0, job.stderr
    assert (
        job.lines["stdout"]
        == Path("riseml.yml")
        .read_text()
        .replace("workers: 2", "workers:\n        count: 2")
        .replace("cpus: 1", "cpus: 1.0")
        .splitlines()
    )
    job = horovodrun("experiment", "plan", "-H", "a:1,b:1")
    told = "\n".join(job.lines["stdout"])
    assert "2 workers x 1 process = 2 ranks\n  rank 0 on a\n  rank 1 on b\n" in told
    assert "line 1: python train.py" in told
    assert not Path("output").exists()


@pytest.mark.slow
def test_an_experiment_in_the_background_is_found_killed_and_goes_on() -> None:
    report = "import horovod; horovod.report_result(accuracy=0.5 + {{n}}, text='ok')"
    path = job_file(
        "test {{n}} != 1 -o -e go || exec sleep 1000",
        f'{PYTHON} -c "{report}"; echo done $N',
        parameters={"n": [0, 1, 2]},
    )

    def ask(*words: str) -> tuple[int, list[str]]:
        job = horovodrun("experiment", *words, "-f", path)
        return job.process.returncode, job.lines["stdout"] or job.lines["stderr"]

    job = horovodrun("-f", path, "-d", HOROVOD_START_TIMEOUT="90")
    assert job.process.returncode == 0
    assert "experiment 1 runs in the background" in job.stderr
    deadline_s = time.monotonic() + DEADLINE_S
    while "1.2  running (line 1)" not in ask("status", "1")[1][2]:
        assert time.monotonic() < deadline_s
    assert ask("status")[1][1].split() == ["1", "running", "1", "of", "3", "finished"]
    code, said = ask("train", "--resume", "1")
    assert (code, "experiment 1 is still running" in said[0]) == (2, True)

    assert ask("kill", "1") == (0, ["experiment 1 was killed"])
    assert ask("kill", "1") == (0, ["experiment 1 is not running"])
    states = [line.split()[1] for line in ask("status", "1")[1][1:]]
    assert states == ["finished", "killed", "pending"]

    Path("go").touch()
    job = horovodrun("experiment", "train", "--resume", "1", "-f", path)
    assert job.process.returncode == 0, job.stderr
    assert "[0]<stdout>:done 0" not in job.lines["stdout"]
    rows = [re.split("  +", line) for line in ask("status", "1")[1]]
    assert [[*row[:3], *row[4:]] for row in rows[1:]] == [
        [
            f"1.{n + 1}",
            "finished",
            "2" if n == 1 else "1",
            f"accuracy={n + 0.5:g}, text=ok",
            f"n={n}",
        ]
        for n in range(3)
    ]
    assert ask("logs", "1.3")[1] == [f"line-02 rank.{rank} stdout: done 2" for rank in range(2)]


def test_one_process_at_a_time_resumes_an_experiment() -> None:
    path = job_file(
        "test -e begun || { touch begun; exit 3; }; echo $$ >> ran",
        "until [ -e go ]; do sleep 0.1; done",
        workers="1",
    )
    assert horovodrun("-f", path).process.returncode == 3
    words = ("experiment", "train", "--resume", "1", "-f", path)
    with launched(*words) as first, launched(*words) as second:
        deadline_s = time.monotonic() + DEADLINE_S
        while first.process.poll() is None and second.process.poll() is None:
            assert time.monotonic() < deadline_s, "both of them run"
            time.sleep(0.02)
        Path("go").touch()
        codes = [job.wait() for job in (first, second)]
    assert sorted(codes) == [0, 2], (first.stderr, second.stderr)
    assert len(Path("ran").read_text().split()) == 1
    loser = first if codes[0] else second
    assert "experiment 1 is still running" in loser.stderr
    assert horovodrun(*words).process.returncode == 0  # nothing is left to run, and nobody owns it


def test_who_comes_last_to_the_end_of_a_line_is_named() -> None:
    path = job_file("test $HOROVOD_RANK != 1 || until [ -e go ]; do sleep 0.1; done", workers="3")
    with launched("-f", path) as job:
        deadline_s = time.monotonic() + DEADLINE_S
        while "2 ranks waiting" not in "\n".join(table_of(path)):
            assert time.monotonic() < deadline_s
        begun = next(each["time"] for each in events() if each["event"] == "line-started")
        came = max(each["time"] for each in events() if each["event"] == "rank-ended")
        time.sleep(1.5 + 0.2 * (came - begun))  # who is waited for less is not named
        Path("go").touch()
        assert job.wait() == 0
    (waited,) = re.findall(
        r"run 1: line 1: all waited ([\d.]+) s for rank 1 on localhost", job.stderr
    )
    ended = {each["rank"]: each["seconds"] for each in events() if each["event"] == "rank-ended"}
    assert abs(ended[1] - max(ended[0], ended[2]) - float(waited)) < 0.1


@pytest.mark.slow
def test_a_sweep_of_12_two_at_a_time_survives_a_failure_and_the_loss_of_its_driver() -> None:
    """Runs of a pair wait for each other; the last one of the first seven waits to be released."""
    report = f"{PYTHON} -c 'import horovod; horovod.report_result(twice=2 * {{{{n}}}})'"
    other = "i=0; until [ -e begun.$((N ^ 1)) ]; do sleep 0.05; i=$((i + 1)); [ $i -lt 600 ]; done"
    path = job_file(
        f"touch begun.$N; {other}; test $N != 4 || exit 3",
        f"test $N -lt 6 -o -e go || exec sleep 1000; {report}",
        workers="1",
        concurrency=2,
        parameters={"n": [*range(12)]},
    )

    def table() -> list[list[str]]:
        return [line.split() for line in table_of(path)[1:]]

    plan = horovodrun("experiment", "plan", "-f", path, "-H", "localhost:3").lines["stdout"]
    assert "12 runs, 2 at a time" in plan
    with launched("-f", path, "-H", "localhost:2") as job:
        deadline_s = time.monotonic() + DEADLINE_S
        while [row[1:4] for row in table()[6:8]] != [["running", "(line", "2)"]] * 2:
            assert time.monotonic() < deadline_s, job.stderr
        family = job.descendants()
        job.process.kill()
        assert_all_gone(family, 20)
    assert [row[1] for row in table()] == [
        *["finished"] * 4, "failed", "finished", "lost", "lost", *["pending"] * 4,
    ]  # fmt: skip
    assert "line 1 of 2 failed" in job.stderr

    Path("go").touch()
    again = horovodrun("experiment", "train", "--resume", "1", "-f", path, "-H", "localhost:2")
    assert again.process.returncode == 3  # of the run that fails each time
    rows = table()
    assert [row[1] for row in rows] == [*["finished"] * 4, "failed", *["finished"] * 7]
    assert [row[4] for row in rows if row[1] == "finished"] == [
        f"twice={2 * n}" for n in range(12) if n != 4
    ]
    told = [line.split()[1:3] for line in again.lines["stderr"]]
    assert all(row[:2] in told for row in rows)


def test_logs_are_followed_to_the_end_of_the_experiment() -> None:
    path = job_file("echo early; until [ -e go ]; do sleep 0.1; done; printf late")
    with launched("-f", path) as job:
        job.wait_lines("stdout", "early", 2)
        with launched("experiment", "logs", "--follow", "-f", path) as follower:
            follower.wait_lines("stdout", "early", 2)
            Path("go").touch()
            assert job.wait() == 0
            assert follower.wait() == 0
    said = [f"line-01 rank.{n} stdout: {what}" for what in ("early", "late") for n in range(2)]
    assert sorted(follower.lines["stdout"]) == sorted(said)


@pytest.mark.slow
def test_what_cannot_be_asked_of_an_experiment() -> None:
    path = job_file("true")
    for words, what in (
        (["status", "7"], "there is no experiment 7"),
        (["logs"], "there is no experiment in"),
        (["monitor"], "there is no experiment in"),
        (["kill"], "say which"),
        (["logs", "one"], "expected ID or ID.RUN"),
        (["kill", "one"], "expected the number"),
        (["kill", "1.2"], "only logs knows single runs"),
        (["train", "--resume", "7"], "there is no experiment 7"),
        (["stop"], "no such verb"),
    ):
        job = horovodrun("experiment", *words, "-f", path)
        assert job.process.returncode == 2
        assert what in job.stderr
    job = horovodrun("-d", "true")
    assert "-d is not for jobs of a fixed size: it is for job files (-f)" in job.stderr
    assert not Path("output").exists()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path_factory.mktemp("ssh")) as ssh_hosts:
        yield ssh_hosts


@pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)
def test_a_lost_agent_ends_the_line_on_all_hosts(hosts: SshHosts) -> None:
    path = job_file("echo asleep; exec sleep 1000", "touch second")
    hosts_of_it = ("-H", "host0:1,host1:1", "--start-timeout", "90")
    with hosts.launched("-f", path, *hosts_of_it) as job:
        job.wait_lines("stdout", "asleep", 2)
        hosts.cut_sessions(1)
        assert job.wait() == 1
    hosts.assert_nothing_runs(12)
    assert "the agent of host1 is gone: the connection was lost" in job.stderr
    assert "run 1: line 1 of 2 failed" in job.stderr
    assert not Path("second").exists()


@pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)
def test_the_example_trains_on_two_hosts(hosts: SshHosts) -> None:
    Path("examples").symlink_to(ROOT / "examples")
    # Whoever logs in there finds no environment.
    text = Path("examples/jobs/digits.yml").read_text().replace("python ", f"{PYTHON} ")
    Path("digits.yml").write_text(text)
    job = hosts.horovodrun("-f", "digits.yml", "-H", "host0:1,host1:1", HOROVOD_START_TIMEOUT="90")
    assert job.process.returncode == 0, job.stderr
    assert any("on 2 rank(s)" in line for line in job.lines["stdout"])
    assert Path("output/digits/1/digits.pt").exists()
