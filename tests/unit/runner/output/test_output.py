from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.output.console import Console
from horovod.runner.output.output import Output

if TYPE_CHECKING:
    from pathlib import Path


def make(**settings: object) -> tuple[Output, io.StringIO, io.StringIO]:
    stdout, stderr = io.StringIO(), io.StringIO()
    sink = Output(Console(stdout, stderr), **settings)  # type: ignore[arg-type]
    sink.place({rank: rank for rank in range(11)}, 11)
    return sink, stdout, stderr


def test_streams_and_prefixes() -> None:
    sink, stdout, stderr = make()
    sink.write(0, "stdout", b"a\nb")
    sink.write(10, "stderr", b"c\n")
    sink.write(1, "stdout", b"d\n")
    sink.finish()
    sink.console.wait(30)
    assert stdout.getvalue() == "[0]<stdout>:a\n[1]<stdout>:d\n[0]<stdout>:b\n"
    assert stderr.getvalue() == "[10]<stderr>:c\n"
    assert sink.stderr_tail(10) == ("c",)
    assert sink.stderr_tail(0) == ()


def test_timestamp_stands_before_the_prefix() -> None:
    sink, stdout, _ = make(timestamps=True, now=lambda: "Mon Jan  1 00:00:00 2029")
    sink.write(3, "stdout", b"a\n")
    sink.console.wait(30)
    assert stdout.getvalue() == "Mon Jan  1 00:00:00 2029[3]<stdout>:a\n"


def test_files_hold_the_bytes_without_prefixes(tmp_path: Path) -> None:
    sink, stdout, _ = make(directory=str(tmp_path / "out"))
    sink.write(3, "stdout", b"\xffa\r\nb")
    sink.write(10, "stderr", b"c")
    sink.console.wait(30)
    sink.close()
    sink.close()
    assert (tmp_path / "out/rank.03/stdout").read_bytes() == b"\xffa\r\nb"
    assert (tmp_path / "out/rank.10/stderr").read_bytes() == b"c"
    assert (tmp_path / "out/rank.00/stderr").read_bytes() == b""
    assert stdout.getvalue() == "[3]<stdout>:�a\r\n"


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out/rank.00").mkdir(parents=True)
    (tmp_path / "out/rank.00/stdout").symlink_to(tmp_path / "precious")
    sink, _, _ = make(directory=str(tmp_path / "out"))
    sink.write(0, "stdout", b"new")
    sink.console.wait(30)
    sink.close()
    assert (tmp_path / "out/rank.00/stdout").read_bytes() == b"new"
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_worker_is_not_its_rank(tmp_path: Path) -> None:
    """A newcomer takes the rank of one that is gone; the console and the files name ranks."""
    sink, stdout, _ = make(directory=str(tmp_path))
    sink.write(1, "stderr", b"gone\n")
    sink.write(1, "stdout", b"old\n")
    sink.place({11: 1, 2: 0})
    sink.write(11, "stdout", b"new\n")
    sink.write(2, "stdout", b"moved\n")
    sink.console.wait(30)
    sink.close()
    assert stdout.getvalue() == "[1]<stdout>:old\n[1]<stdout>:new\n[0]<stdout>:moved\n"
    assert (tmp_path / "rank.01/stdout").read_bytes() == b"old\nnew\n"
    assert (tmp_path / "rank.00/stdout").read_bytes() == b"moved\n"
    assert (sink.stderr_tail(1), sink.stderr_tail(11)) == (("gone",), ())


def test_of_a_worker_that_has_ended_nothing_is_kept(tmp_path: Path) -> None:
    sink, stdout, _ = make(directory=str(tmp_path))
    sink.write(1, "stdout", b"last words")
    sink.write(1, "stderr", b"error\n")
    sink.forget(1)
    sink.forget(2)
    sink.write(1, "stdout", b"of a child\n")
    sink.console.wait(30)
    sink.close()
    assert stdout.getvalue() == "[1]<stdout>:last words\n[1]<stdout>:of a child\n"
    assert sink.stderr_tail(1) == ()


def test_a_single_rank_has_files_too(tmp_path: Path) -> None:
    sink = Output(Console(io.StringIO(), io.StringIO()), directory=str(tmp_path))
    sink.place({0: 0}, 1)
    sink.close()
    assert (tmp_path / "rank.0/stdout").exists()


def test_files_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the output of the ranks to"):
        make(directory=str(tmp_path / "file"))


def test_a_console_that_knows_only_ascii() -> None:
    raw = io.BytesIO()
    console = io.TextIOWrapper(raw, encoding="ascii")
    with Console(console, console) as written:
        Output(written).write(0, "stdout", "é\n".encode())
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
    sink.console.wait(30)
    lines = stdout.getvalue().splitlines()
    assert sorted(lines) == sorted(
        f"[{rank}]<stdout>:{line.decode()}" for rank in range(4) for _ in range(50)
    )


class Stream(io.StringIO):
    """A console that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("stdout", "stderr", "environ", "colored"),
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
    stdout: bool, stderr: bool, environ: dict[str, str], colored: set[str]
) -> None:
    assert Console(Stream(stdout), Stream(stderr)).colored(environ) == colored


def test_each_rank_has_its_colour_and_lines_have_none(tmp_path: Path) -> None:
    sink, stdout, stderr = make(colored={"stdout"}, directory=str(tmp_path))
    for rank in (0, 1, 6):
        sink.write(rank, "stdout", b"a\n")
    sink.write(0, "stderr", b"b\n")
    sink.console.wait(30)
    sink.close()
    first, second, seventh = stdout.getvalue().splitlines()
    assert first == "\x1b[36m[0]<stdout>:\x1b[0ma"
    assert second == "\x1b[32m[1]<stdout>:\x1b[0ma"
    assert seventh.startswith("\x1b[36m[6]")
    assert stderr.getvalue() == "[0]<stderr>:b\n"
    assert (tmp_path / "rank.00/stdout").read_bytes() == b"a\n"


def test_a_prompt_appears_and_nobody_writes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod.runner.output.output.PROMPT_S", 0.0)
    console = io.StringIO()
    sink = Output(Console(console, console), stdin_rank=1)
    sink.write(0, "stdout", b"begun")
    sink.write(1, "stdout", b"(Pdb) ")
    assert sink.show_prompts() is None
    sink.write(1, "stdout", b"42\n(Pdb) ")
    assert sink.show_prompts() is None
    sink.write(2, "stderr", b"other\n")
    sink.write(1, "stdout", b"43\n")
    sink.console.wait(30)
    assert console.getvalue() == (
        "[1]<stdout>:(Pdb) 42\n[1]<stdout>:(Pdb) \n[2]<stderr>:other\n[1]<stdout>:43\n"
    )


def test_a_line_in_two_parts_is_no_prompt() -> None:
    sink, stdout, _ = make(stdin_rank=1)
    assert sink.show_prompts() is None
    sink.write(1, "stdout", b"a")
    left_s = sink.show_prompts()
    assert left_s is not None
    assert 0 < left_s <= 0.1
    sink.write(1, "stdout", b"\n")
    assert sink.show_prompts() is None
    sink.console.wait(30)
    assert stdout.getvalue() == "[1]<stdout>:a\n"
