from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.errors import UsageError
from horovod.runner import output
from horovod.runner.output import LinePrefixer, Output, Tail, streams_to_colour

if TYPE_CHECKING:
    from pathlib import Path


def prefixed(*chunks: bytes) -> str:
    prefixer = LinePrefixer(lambda: ">")
    return "".join([*map(prefixer.feed, chunks), prefixer.finish()])


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([b"a\nb\n"], ">a\n>b\n"),
        ([b"a", b"b\nc", b"\n"], ">ab\n>c\n"),
        ([b"no end"], ">no end\n"),
        ([b"\n\n"], ">\n>\n"),
        ([b"10%\r20%\r", b"done\n"], ">10%\r>20%\r>done\n"),
        ([b"dos\r\nline\r", b"\nend\r", b"x\n"], ">dos\r\n>line\r\n>end\r>x\n"),
        (["é€".encode()[:1], "é€".encode()[1:3], "é€".encode()[3:] + b"\n"], ">é€\n"),
        ([b"bad \xff byte\n"], ">bad � byte\n"),
        ([b"cut \xe2\x82"], ">cut �\n"),
        ([], ""),
    ],
)
def test_prefixes(chunks: list[bytes], text: str) -> None:
    assert prefixed(*chunks) == text


def test_a_line_appears_as_soon_as_it_is_complete() -> None:
    prefixer = LinePrefixer(lambda: ">")
    assert prefixer.feed(b"a\nb") == ">a\n"
    assert prefixer.feed(b"\rc") == ">b\r"
    assert prefixer.finish() == ">c\n"
    assert prefixer.finish() == ""


def test_a_line_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_LINE_CHARS", 4)
    assert prefixed(b"123456", b"78\n") == ">123456\n>78\n"


@settings(deadline=None)  # the machine may be busy
@given(st.text(alphabet="a\r\né€", max_size=30), st.integers(1, 5))
def test_the_cut_does_not_matter(text: str, step: int) -> None:
    data = text.encode()
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    assert prefixed(*pieces) == prefixed(data)


def test_tail_shows_the_last_lines_as_a_terminal_does() -> None:
    tail = Tail()
    tail.feed(b"".join(b"line %d\n" % number for number in range(30)))
    tail.feed(b"10%\r99%\r\nlast \xff" + b"x" * 600)
    lines = tail.lines()
    assert len(lines) == 20
    assert lines[-2] == "99%"
    assert lines[-1].startswith("last �x")
    assert len(lines[-1]) == 500


def make(**settings: object) -> tuple[Output, io.StringIO, io.StringIO]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return Output(11, stdout, stderr, **settings), stdout, stderr  # type: ignore[arg-type]


def test_streams_and_prefixes() -> None:
    sink, stdout, stderr = make()
    sink.write(0, "stdout", b"a\nb")
    sink.write(10, "stderr", b"c\n")
    sink.write(1, "stdout", b"d\n")
    sink.finish()
    assert stdout.getvalue() == "[0]<stdout>:a\n[1]<stdout>:d\n[0]<stdout>:b\n"
    assert stderr.getvalue() == "[10]<stderr>:c\n"
    assert sink.stderr_tail(10) == ("c",)
    assert sink.stderr_tail(0) == ()


def test_timestamp_stands_before_the_prefix() -> None:
    sink, stdout, _ = make(timestamps=True, now=lambda: "Mon Jan  1 00:00:00 2029")
    sink.write(3, "stdout", b"a\n")
    assert stdout.getvalue() == "Mon Jan  1 00:00:00 2029[3]<stdout>:a\n"


def test_files_hold_the_bytes_without_prefixes(tmp_path: Path) -> None:
    sink, stdout, _ = make(directory=str(tmp_path / "out"))
    sink.write(3, "stdout", b"\xffa\r\nb")
    sink.write(10, "stderr", b"c")
    sink.close()
    sink.close()
    assert (tmp_path / "out/rank.03/stdout").read_bytes() == b"\xffa\r\nb"
    assert (tmp_path / "out/rank.10/stderr").read_bytes() == b"c"
    assert (tmp_path / "out/rank.00/stderr").read_bytes() == b""
    assert stdout.getvalue() == "[3]<stdout>:�a\r\n"


def test_a_single_rank_has_files_too(tmp_path: Path) -> None:
    Output(1, io.StringIO(), io.StringIO(), directory=str(tmp_path)).close()
    assert (tmp_path / "rank.0/stdout").exists()


def test_files_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the output of the ranks to"):
        make(directory=str(tmp_path / "file"))


def test_a_console_that_knows_only_ascii() -> None:
    raw = io.BytesIO()
    console = io.TextIOWrapper(raw, encoding="ascii")
    Output(1, console, console).write(0, "stdout", "é\n".encode())
    assert raw.getvalue() == b"[0]<stdout>:?\n"


def test_lines_of_threads_do_not_mix() -> None:
    sink, stdout, _ = make()
    line = b"x" * 200

    def write(rank: int) -> None:
        for _ in range(50):
            sink.write(rank, "stdout", line[:77])
            sink.write(rank, "stdout", line[77:] + b"\n")

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    lines = stdout.getvalue().splitlines()
    assert sorted(lines) == sorted(
        f"[{rank}]<stdout>:{line.decode()}" for rank in range(4) for _ in range(50)
    )


class Console(io.StringIO):
    """A console that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("stdout", "stderr", "environ", "coloured"),
    [
        (True, True, {"TERM": "xterm"}, {"stdout", "stderr"}),
        (True, False, {"TERM": "xterm"}, {"stdout"}),
        (False, False, {"TERM": "xterm"}, set()),
        (True, True, {"TERM": "xterm", "NO_COLOR": "1"}, set()),
        (True, True, {"TERM": "xterm", "NO_COLOR": ""}, {"stdout", "stderr"}),
        (True, True, {"TERM": "dumb"}, set()),
        (True, True, {}, set()),
    ],
)
def test_only_terminals_get_colours(
    stdout: bool, stderr: bool, environ: dict[str, str], coloured: set[str]
) -> None:
    assert streams_to_colour(Console(stdout), Console(stderr), environ) == coloured


def test_each_rank_has_its_colour_and_lines_have_none(tmp_path: Path) -> None:
    sink, stdout, stderr = make(coloured={"stdout"}, directory=str(tmp_path))
    for rank in (0, 1, 6):
        sink.write(rank, "stdout", b"a\n")
    sink.write(0, "stderr", b"b\n")
    sink.close()
    first, second, seventh = stdout.getvalue().splitlines()
    assert first == "\x1b[36m[0]<stdout>:\x1b[0ma"
    assert second == "\x1b[32m[1]<stdout>:\x1b[0ma"
    assert seventh.startswith("\x1b[36m[6]")
    assert stderr.getvalue() == "[0]<stderr>:b\n"
    assert (tmp_path / "rank.00/stdout").read_bytes() == b"a\n"
