"""The job's secret in its private file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from horovod._rendezvous import make_secret, read_secret, write_secret
from horovod.errors import StartError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def private(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_secrets_differ_and_have_32_bytes() -> None:
    assert len(make_secret()) == 32
    assert make_secret() != make_secret()


def test_a_written_secret_is_read_and_private_whatever_the_umask(private: Path) -> None:
    secret = make_secret()
    umask = os.umask(0)
    try:
        path = write_secret(private, secret)
    finally:
        os.umask(umask)
    assert read_secret(path) == secret
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_second_secret_does_not_replace_the_first(private: Path) -> None:
    write_secret(private, make_secret())
    with pytest.raises(StartError, match="File exists"):
        write_secret(private, make_secret())


def test_a_directory_open_to_others_is_refused(private: Path) -> None:
    private.chmod(0o750)
    with pytest.raises(StartError, match=r"mode 0750.*0700"):
        write_secret(private, make_secret())
    assert os.listdir(private) == []


def test_a_secret_of_the_wrong_size_is_not_written(private: Path) -> None:
    with pytest.raises(StartError, match="31 bytes"):
        write_secret(private, b"x" * 31)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_open_to_others_is_refused(private: Path, mode: int) -> None:
    path = write_secret(private, make_secret())
    os.chmod(path, mode)
    with pytest.raises(StartError, match=f"mode {mode:04o}"):
        read_secret(path)


@pytest.mark.parametrize("size", [0, 31, 33, 4096])
def test_a_file_of_the_wrong_size_is_refused(private: Path, size: int) -> None:
    path = private / "secret"
    path.write_bytes(b"x" * size)
    path.chmod(0o600)
    with pytest.raises(StartError, match="not 32"):
        read_secret(path)


def test_a_missing_file_is_named(private: Path) -> None:
    with pytest.raises(StartError, match=r"absent: No such file"):
        read_secret(private / "absent")


def test_no_path_at_all_tells_to_use_the_launcher() -> None:
    with pytest.raises(StartError, match="horovodrun"):
        read_secret("")


def test_a_fifo_or_a_directory_is_refused_at_once(private: Path) -> None:
    fifo = private / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(StartError, match="not a regular file"):
        read_secret(fifo)
    with pytest.raises(StartError):
        read_secret(private)


def test_a_file_of_another_user_is_refused(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_secret(private, make_secret())
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(StartError, match=f"belongs to user {owner}"):
        read_secret(path)


def test_a_symbolic_link_is_followed_as_kubernetes_mounts_secrets_so(private: Path) -> None:
    secret = make_secret()
    (private / "link").symlink_to(write_secret(private, secret))
    assert read_secret(private / "link") == secret
