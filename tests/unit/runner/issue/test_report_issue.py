"""The file of ``horovodrun report-issue``: what is in it, and what is not."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import horovod
from horovod.runner.cli.command import main
from horovod.runner.issue.redaction import Redaction
from horovod.runner.output.kept_reports import MOST_REPORTS, keep_report, kept_reports

SECRETS = {
    "HOROVOD_SECRET_KEY": "5e" * 32,
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIplanted",
    "MY_APP_SETTING": "planted-value-of-an-unknown-variable",
    "DB_URL": "postgres://planted:word@db.internal/x",
    "HOROVOD_LOG": "jsonl:/srv/planted-project/values.json",
    "HOROVOD_NOT_A_SETTING": "planted-word-of-no-setting",
}
PLANTED_LOG = f"""\
rank 1 on gpu-node-07.cluster.example failed with exit code 1
rank 2 (gpu-node-08:4711) was lost; gpu-node-07 is the first cause
connecting to 10.11.12.13 port 4711 and fe80::1ff:fe23:4567:890a failed
password=hunter2planted --api-key plantedapikey Authorization: Bearer abcdef.ghi-planted
{{"access_token": "plantedtoken"}} hf_plantedplantedplanted ghp_plantedplantedplanted
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAplanted
-----END OPENSSH PRIVATE KEY-----
https://user:planted@host.example/path?key=planted#planted
someone.planted@example.com
File "/home/plantedname/project/train.py", line 3; /Users/plantedname/x; /root/.netrc
the key is {"0123456789abcdef" * 4} and {SECRETS["MY_APP_SETTING"]}
horovod.errors.PeerLostError: rank 2 on gpu-node-08 was lost
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "plantedhome"))
    monkeypatch.chdir(tmp_path)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "plantedhome").mkdir()
    return tmp_path


def test_it_has_versions_settings_machine_and_failures(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1048576")
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "debug")
    keep_report(["ranks 0 and 1 failed", "ValueError: the last failure"])
    assert main(["report-issue"]) == 0
    assert capsys.readouterr().out.startswith("wrote horovod-report.md; read it before")
    text = Path("horovod-report.md").read_text()
    for part in (
        *(f"Horovod {horovod.__version__}", f"Python {sys.version.split()[0]}", "kernel Linux"),
        *("libc ", "HOROVOD_FUSION_THRESHOLD=1048576", "HOROVOD_LOG_LEVEL=debug"),
        *("HOROVOD_LOG is set", "usable of", "interface 1: ", "ValueError: the last failure"),
    ):
        assert part in text
    assert stat.S_IMODE(os.stat("horovod-report.md").st_mode) == 0o600


def test_nothing_that_was_planted_is_in_it(home: Path) -> None:
    (home / "planted.log").write_text(PLANTED_LOG)
    keep_report([PLANTED_LOG])
    keep_report([f"{home}/plantedhome/x on {socket.gethostname()}"])
    assert main(["report-issue", "-o", "out.md", "planted.log"]) == 0
    text = Path("out.md").read_text()
    assert "planted" not in text, [line for line in text.splitlines() if "planted" in line]
    for word in ("gpu-node", "hunter2", "10.11.12.13", "fe80", "5e5e", "0123456789abcdef", "/root"):
        assert word not in text
    assert not re.search(rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])", text)
    # Who reads it still sees which host is which, and what failed.
    assert re.search(r"rank 1 on (host-\d+) failed.*\n.*\((host-\d+):4711\).*; \1 is", text)
    assert "horovod.errors.PeerLostError: rank 2 on host-" in text
    assert 'File "~/project/train.py", line 3' in text


def test_versions_and_paths_of_programs_stay() -> None:
    text = "PyTorch 2.13.0 on Python 3.11.2, /usr/lib/python3/x.py:12, 12:30:59, 127.0.0.1, a::b()"
    assert Redaction(hosts=["node1"]).apply(text) == text


def test_a_name_within_a_word_stays() -> None:
    redaction = Redaction(hosts=["node"], users=["ann"])
    assert redaction.apply("annotate nodes at node of ann") == "annotate nodes at host-1 of <user>"


def test_an_existing_file_stays_without_force(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("kept.md").write_text("mine")
    Path("link.md").symlink_to("nowhere")
    for name in ("kept.md", "link.md"):
        assert main(["report-issue", "-o", name]) == 2
        assert f"{name} exists: name another file with -o" in capsys.readouterr().err
    assert Path("kept.md").read_text() == "mine"
    assert main(["report-issue", "-o", "kept.md", "--force"]) == 0
    assert Path("kept.md").read_text().startswith("# Report about Horovod")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--frce"], 2, "unrecognized arguments: --frce"),
        (["-o", "-"], 2, "-o needs the name of a file"),
        (["no.log"], 2, "cannot read no.log: No such file or directory"),
        (["-o", "no/folder/x.md"], 1, "cannot write no/folder/x.md: No such file or directory"),
        (["--force", "-o", "/dev/full"], 1, "cannot write /dev/full: it is not a regular file"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    home: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report-issue", *words]) == code
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not Path("horovod-report.md").exists()


def test_a_full_disk_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["report-issue", "-o", "x.md"]) == 1
    assert sorted(os.listdir()) == ["plantedhome"]


@pytest.mark.parametrize("redirection", [">&-", "2>&- >&-", ">/dev/full"])
def test_the_file_is_written_without_a_console(home: Path, redirection: str) -> None:
    command = f"'{sys.executable}' -m horovod report-issue {redirection}"
    done = subprocess.run(["sh", "-c", command], check=False)
    assert Path("horovod-report.md").read_text().startswith("# Report about Horovod")
    assert done.returncode == 0


def test_two_at_once_write_one_whole_file(home: Path) -> None:
    command = [sys.executable, "-m", "horovod", "report-issue", "-o", "one.md"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], errors
    assert Path("one.md").read_text().endswith("```\n")


def test_the_last_reports_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    for number in range(MOST_REPORTS + 3):
        keep_report([f"failure {number}", ""], folder)
    assert len(kept_reports(folder)) == MOST_REPORTS
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    keep_report([""], folder)
    keep_report(["x"], tmp_path / "file" / "below")  # made
    (tmp_path / "no").write_text("")
    keep_report(["x"], tmp_path / "no")  # no folder, and no error
    assert kept_reports(tmp_path / "no") == []


@pytest.mark.parametrize(
    "text",
    [
        "Command '['mysql', '--password', 'planted']' returned non-zero exit status 1",
        '["--token", "planted"]',
        "train.py --wandb-key planted --access-key planted",
        "passphrase=planted DB_PASS: planted",
        "Cookie: session=planted",
        r"{\"password\": \"planted\"}",
        "Authorization: Token planted",
        "HTTPS://bob:planted$1@db.example/x",
        "postgres://bob:p)planted@db",
        "MIIplanted\nplanted\n-----END PRIVATE KEY-----\nafter",
    ],
)
def test_secrets_are_removed_in_every_spelling(text: str) -> None:
    assert "planted" not in Redaction().apply(text)


def test_a_line_of_one_long_word_takes_no_longer_per_letter() -> None:
    # With quadratic patterns, each of them took a quarter of an hour.
    words = [piece * (32768 // len(piece)) for piece in (".", "-", "token", "a1B", "x@", "ab:")]
    program = "import sys; from horovod.runner.issue.redaction import Redaction as R; "
    program += "print(len(R().apply(sys.stdin.read())))"
    for word in (*words, "a://" * 8192):
        shown = subprocess.run(
            [sys.executable, "-c", program],
            input=word, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert 0 < int(shown.stdout) <= len(word)
