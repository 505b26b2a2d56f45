"""A rank of another version is refused with both versions, however the job was started."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from launcher import environment, free_port, horovodrun, python

import horovod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHER = "1.99.0"
# The last rank has another version, or all of them have one.
RANK = """
import os, horovod
if os.environ["HOROVOD_RANK"] in {ranks}: horovod.__version__ = "1.99.0"
import horovod._rank.context as hvd
hvd.init()
"""
OURS = re.escape(horovod.__version__)


@pytest.mark.parametrize("ranks", [("1",), ("0", "1")])
def test_a_job_of_horovodrun(ranks: tuple[str, ...]) -> None:
    run = horovodrun("-np", "2", *python(RANK.format(ranks=ranks)))
    text = "\n".join(run.lines["stderr"])
    assert run.process.returncode == 1, text
    refusal = (
        rf"rank {ranks[-1]} \(\S+\) has Horovod {OTHER}, but the process .* has Horovod {OURS}"
    )
    assert re.search(refusal, text), text


def test_an_elastic_job() -> None:
    code = "import horovod; horovod.__version__ = '1.99.0'\nimport horovod.torch as hvd\nhvd.init()"
    run = horovodrun("-np", "1", "--min-np", "1", *python(code), HOROVOD_START_TIMEOUT="85")
    text = "\n".join(run.lines["stderr"])
    assert run.process.returncode == 1, text
    assert re.search(rf"has Horovod {OTHER}, but the process .* has Horovod {OURS}", text), text


@pytest.fixture
def port() -> Iterator[int]:
    with free_port() as port:
        yield port


def test_ranks_without_a_launcher_of_ours_all_hear_of_it(port: int) -> None:
    shared = {
        "HOROVOD_SIZE": "2",
        "HOROVOD_RENDEZVOUS": f"localhost:{port}",
        "HOROVOD_SECRET_KEY": secrets.token_hex(32),
        "HOROVOD_START_TIMEOUT": "90",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK.format(ranks=("1",))],
            env=environment(**shared, HOROVOD_RANK=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=80.0)[1] for rank in ranks]  # before the start times out
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(30.0)
    for text in texts:
        assert re.search(
            rf"rank 1 \(\S+ \(process \d+\)\) has Horovod {OTHER}, .* has Horovod {OURS}; install",
            text,
        ), texts


def test_ranks_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK.replace("HOROVOD_RANK", "RANK").format(ranks=("1",)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, "--redirects=0", str(script)],
        env=environment(HOROVOD_START_TIMEOUT="90"),
        capture_output=True,
        text=True,
        timeout=80.0,  # before the start times out
        check=False,
    )
    assert done.returncode != 0
    refusal = rf"rank 1 \(\S+ \(process \d+\)\) has Horovod {OTHER}, but .* has Horovod {OURS}"
    assert re.search(refusal, done.stderr), done.stderr
