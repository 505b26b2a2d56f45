"""What is written to a file is read once, in whole lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.runner.experiment.new_lines import NewLines

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_come_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    lines = NewLines(path)

    def after(data: bytes, *, is_last: bool = False) -> list[str]:
        with path.open("ab") as file:
            file.write(data)
        return list(lines.read(is_last=is_last))

    assert list(lines.read(is_last=True)) == []
    assert after(b"") == []
    assert after(b"one\n\ntw") == ["one", ""]
    assert after("ö\r2".encode()) == []
    assert after(b"\nthree\n\xff") == ["twö\r2", "three"]
    assert after(b"", is_last=True) == ["\ufffd"]
    path.write_bytes(b"")
    assert after(b"anew\n") == ["anew"]


def test_a_long_line_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"x" * (5 << 20))
    lines = NewLines(path)
    for _ in range(1000):
        assert list(lines.read()) == []
    assert list(lines.read(is_last=True)) == ["x" * (5 << 20)]
