"""What the command line may add to a job file, elastic or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horovod.runner.cli.command import main

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "project: p\ntrain: {run: [a], horovod: {workers: 2}}\n"
ELASTIC = "version: 2\n" + PLAIN.replace("workers: 2}", "workers: 2}, elastic: {min: 1, max: 4}")
INSTALL = ELASTIC.replace("[a]", "[a], install: [b]")
ON_HOSTS = ELASTIC.replace("[a]", "[{cmd: a, on: host}]")
DISCOVERY = ("--host-discovery-script", "echo localhost:2")


@pytest.mark.parametrize(
    ("text", "words", "code", "said"),
    [
        (PLAIN, DISCOVERY, 2, "elastic jobs ('elastic: {min: N}' under train"),
        (PLAIN, ("--reset-limit", "2"), 2, "it is for elastic jobs"),
        (ON_HOSTS, DISCOVERY, 2, "lines for some ranks (on), which need hosts that stay"),
        (INSTALL, DISCOVERY, 2, "commands to install, which need hosts that stay"),
        (INSTALL, (), 0, "\nonce on each host: b\n"),
        (ELASTIC, ("--min-np", "1"), 2, "not for job files (-f)"),
        (ELASTIC, ("--join-file", "x"), 2, "not for job files (-f)"),
        (ELASTIC, ("--reset-limit", "-1"), 2, "--reset-limit is -1"),
        (ELASTIC, DISCOVERY, 0, "then from 1 to 4\n  on the hosts that discovery lists\n"),
        (ELASTIC, ("-H", "a:1,b:3"), 0, "then from 1 to 4\n  rank 0 on a\n  rank 1 on b\n"),
        (ELASTIC.replace(", max: 4", ""), (), 0, "then from 1 to as many as there are slots\n"),
    ],
)
def test_elastic_job_files_and_options(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    path = tmp_path / "job.yml"
    path.write_text(text)
    assert main(["-f", str(path), "--dry-run", *words], {}) == code
    assert said in "".join(capsys.readouterr())
