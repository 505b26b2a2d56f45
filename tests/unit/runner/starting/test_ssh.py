"""The command line of ssh, and what its failures mean."""

from __future__ import annotations

import shlex
import sys

import pytest

from horovod.runner.starting.ssh import SshOptions, command_line, explain, python_words


def test_ssh_asks_for_nothing_and_notices_a_lost_host() -> None:
    line = command_line("worker-0", "", SshOptions(), ["echo", "a b"])
    assert line[0] == "ssh"
    assert line[-3:] == ["--", "worker-0", "echo 'a b'"]
    settings = [line[index + 1] for index, word in enumerate(line) if word == "-o"]
    assert "BatchMode=yes" in settings
    silence_s = [int(each.split("=")[1]) for each in settings if each.startswith("ServerAlive")]
    assert len(silence_s) == 2
    assert silence_s[0] * (silence_s[1] + 1) < 10
    # What the user's own configuration decides is left to it.
    assert not any("StrictHostKeyChecking" in each for each in settings)
    assert "-p" not in line
    assert "-i" not in line


def test_the_options_of_the_user_are_passed_on() -> None:
    line = command_line("::1", "me", SshOptions(2222, "/k e y"), ["x"])
    assert line[line.index("-p") + 1] == "2222"
    assert line[line.index("-i") + 1] == "/k e y"
    assert line[line.index("-l") + 1] == "me"
    assert line[-2] == "::1"


def test_the_remote_command_names_python_and_where_modules_are() -> None:
    words = python_words("horovod.runner.agent", {"PYTHONPATH": "/a b", "TOKEN": "hush"})
    assert words[-3:] == [sys.executable, "-m", "horovod.runner.agent"]
    assert any(word.startswith("PYTHONPATH=") and "/a b" in word for word in words)
    assert "hush" not in shlex.join(words)


@pytest.mark.parametrize(
    ("code", "said", "message"),
    [
        (255, "ssh: Could not resolve hostname a: Name or service not known", "name is unknown"),
        (255, "ssh: connect to host a port 22: Connection refused", "refused; does sshd run"),
        (255, "ssh: connect to host a port 22: Connection timed out", "cannot be reached"),
        (255, "ssh: connect to host a port 22: No route to host", "cannot be reached"),
        (255, "me@a: Permission denied (publickey).", "permission was denied"),
        (255, "Host key verification failed.", "not in known_hosts"),
        (255, "Timeout, server a not responding.", "connection was lost"),
        (255, "Connection to a closed by remote host.", "connection was lost"),
        (255, "client_loop: send disconnect: Broken pipe", "connection was lost"),
        (127, "env: '/p': No such file or directory", f"no Python at {sys.executable}"),
        (126, "env: '/p': Permission denied", "is not executable there"),
        (1, "/p: No module named horovod", "Horovod is not installed"),
        (
            1,
            "/p: Error while finding module specification for 'horovod.runner.agent' "
            "(ModuleNotFoundError: No module named 'horovod')",
            "Horovod is not installed",
        ),
        (1, "ModuleNotFoundError: No module named 'psutil'", "lacks a module"),
        (255, "kex_exchange_identification: something new", "something new"),
        (None, "", "without a message"),
        (255, "", "ssh failed"),
    ],
)
def test_a_failure_is_explained_in_one_line(code: int | None, said: str, message: str) -> None:
    text = explain(code, [said])
    assert message in text
    assert said in text
    assert "\n" not in text


def test_a_changed_host_key_is_not_taken_for_an_unknown_one() -> None:
    lines = [
        "@@@@@@@@@@@@@@@@@@",
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
        "@@@@@@@@@@@@@@@@@@",
        "Host key verification failed.",
    ]
    assert "ssh-keygen -R" in explain(255, lines)
