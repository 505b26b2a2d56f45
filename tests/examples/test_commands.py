"""The commands of README and the documents run as printed, and print what the page says.

Each page has one folder, and its blocks run in their order, each as one script of bash. Two things
are replaced: /tmp is that folder, as is the home, and names of hosts (HOSTS) are the addresses of
emulated ones. Those of README import frameworks as users do, the others with tests/quick_imports.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster, entered
from pages import PAGES, PAGES_OF_SITE, Block, blocks_of, files_of
from ssh_hosts import SshHosts, why_not
from unrun import words_of

import horovod
from horovod._settings.setting import Status
from horovod.runner.settings.config_file import read_config_file
from horovod.runner.settings.flags import FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torch")

SOURCE = str(Path(horovod.__file__).resolve().parent.parent)
QUICK_IMPORTS = str(Path(__file__).parent.with_name("quick_imports"))
BINARIES = str(Path(sys.executable).parent)
# MPICH has a folder of its own: it brings an mpirun, as Open MPI does.
MPICH = Path(sys.prefix) / "mpich" / "bin"
HOSTS = ("worker-0", "worker-1")
DEADLINE_S = 300.0

BLOCKS = [block for page in PAGES if page not in PAGES_OF_SITE for block in blocks_of(page)]
RUN = [block for block in BLOCKS if block.mark == "run"]
PRINTED = [block for block in BLOCKS if block.after("output of:")]

LOSS = r"rank {rank} of {size}: loss 0\.0\d*"
# What the ranks of a program print, one line each.
TRAININGS = (
    "train.py",
    "before.py",
    "after.py",
    "train_torch.py",
    "train_tensorflow.py",
    "train_keras.py",
)
LINES = {**dict.fromkeys(TRAININGS, LOSS), "hello.py": r"rank {rank} of {size}: {size}"}
# What a program prints once.
TEXTS = {
    "save.py": "saved",
    "call.py": "[3.0, 3.0]",
    "old.py": "0 will fail",
    "consume.py": "the sum of all elements is 9900",
}
NOT_TRAINING = ("--dry-run", "--check", "doctor")


@dataclass
class Place:
    """Where commands run.

    Attributes:
        folder: of the page.
        python_path: where Python looks for modules.
        replaced: what is printed, and what stands for it here.
        path: folders that come first in PATH.
        namespaces: of the hosts, by their names in the documents.
    """

    folder: Path
    python_path: str
    replaced: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    namespaces: dict[str, str] = field(default_factory=dict)

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        """Runs lines of a page; those for one host each run at the same time."""
        first, by_host = split(text)
        with ExitStack() as stack:
            if by_host and first:
                self._begin(first, HOSTS[0], stack).communicate(timeout=DEADLINE_S)
            scripts = by_host or {"": text}
            begun = [self._begin(script, host, stack) for host, script in scripts.items()]
            ended = [process.communicate(timeout=DEADLINE_S) for process in begun]
        codes = [process.returncode for process in begun if process.returncode]
        stdout, stderr = ("".join(texts) for texts in zip(*ended, strict=True))
        return subprocess.CompletedProcess(text, codes[0] if codes else 0, stdout, stderr)

    def _begin(self, script: str, host: str, stack: ExitStack) -> subprocess.Popen[str]:
        """Starts a script on a host; on the first one, if there are hosts and none is named."""
        script = replace(script, {**self.replaced, "/tmp": str(self.folder)})
        path = os.pathsep.join([*self.path, BINARIES, os.environ["PATH"]])
        with ExitStack() as inside:
            if self.namespaces:
                inside.enter_context(entered(self.namespaces[host or HOSTS[0]]))
            process = subprocess.Popen(
                ["bash", "-ec", script],
                cwd=self.folder,
                env={
                    **os.environ,
                    "HOME": str(self.folder),
                    "PATH": path,
                    "PYTHONPATH": self.python_path,
                    "HOROVOD_START_TIMEOUT": "90",  # many ranks, two busy cores
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        stack.callback(end, process)
        return process


def end(process: subprocess.Popen[str]) -> None:
    """Kills a script that still runs, with the launcher that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_S)


def replace(text: str, replaced: dict[str, str]) -> str:
    for printed, meant in replaced.items():
        text = text.replace(printed, meant)
    return text


def split(text: str) -> tuple[str, dict[str, str]]:
    """What is said to run once, and the rest for each host that a comment names."""
    lines = text.splitlines()
    once = [line for line in lines if re.search(r"# once\b", line)]
    own = {host: [line for line in lines if f"# on {host}" in line] for host in HOSTS}
    of_all = [line for line in lines if not any(line in those for those in (once, *own.values()))]
    scripts = {host: "\n".join([*of_all, *those]) for host, those in own.items() if those}
    return "\n".join(once), scripts


def test_lines_for_one_host_run_there_only() -> None:
    text = "make secret  # once\nexport A=1\nrun 0  # on worker-0\nrun 1  # on worker-1\n"
    by_host = {f"worker-{i}": f"export A=1\nrun {i}  # on worker-{i}" for i in (0, 1)}
    assert split(text) == ("make secret  # once", by_host)
    assert split("run a\nrun b\n") == ("", {})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with the files of each page."""
    made = {page: tmp_path_factory.mktemp("page") for page in PAGES}
    for page, folder in made.items():
        for name, text in files_of(page).items():
            (folder / name).write_text(text)
    return made


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if why_not():
        pytest.skip(why_not())
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path_factory.mktemp("ssh")) as ssh_hosts:
        yield ssh_hosts


def python_path_of(block: Block) -> str:
    return SOURCE if block.page == "README.md" else os.pathsep.join([QUICK_IMPORTS, SOURCE])


def place_of(block: Block, folder: Path, request: pytest.FixtureRequest) -> Place:
    """Emulated hosts with ssh, if the block names hosts; MPICH, if it wants mpirun."""
    if not any(host in block.text for host in HOSTS):
        if "mpirun" in block.text and not MPICH.exists():
            pytest.skip("MPICH is not installed in its own folder")
        path = [str(MPICH)] if "mpirun" in block.text else []
        return Place(folder, python_path_of(block), path=path)
    ssh_hosts = request.getfixturevalue("hosts")
    emulated = dict(zip(HOSTS, ssh_hosts.cluster.hosts, strict=True))
    addresses = {name: host.address for name, host in emulated.items()}
    for file in folder.glob("*.txt"):  # hostfiles of the page name the hosts, too
        file.write_text(replace(file.read_text(), addresses))
    return Place(
        folder,
        python_path_of(block),
        replaced=addresses,
        path=ssh_hosts.environment["PATH"].split(os.pathsep)[:1],
        namespaces={name: host.namespace for name, host in emulated.items()},
    )


NUM_RANKS = ("-np", "-n", "--nproc-per-node")


def size_of(words: list[str]) -> int:
    given = [words[i + 1] for i, word in enumerate(words) if word in NUM_RANKS]
    return int(given[0]) if given else 1


def expected_lines(text: str) -> list[str]:
    """Patterns of the lines that the ranks of all commands print together."""
    found = []
    for command in text.splitlines():
        words = words_of(command)
        programs = set(words) & LINES.keys()
        if not programs or set(words) & set(NOT_TRAINING):
            continue
        if "--node-rank" in words and words[words.index("--node-rank") + 1] != "0":
            continue  # the ranks were counted with node 0
        size = size_of(words)
        (program,) = programs
        found += [LINES[program].format(rank=rank, size=size) for rank in range(size)]
    return found


@pytest.mark.parametrize("block", RUN, ids=str)
def test_the_commands_run(
    block: Block, folders: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    result = place_of(block, folders[block.page], request).run(block.text)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not re.search("deprecated|without effect|ignored", result.stderr), result.stderr
    lines = [line.split(">:", 1)[-1] for line in result.stdout.splitlines()]
    for pattern in expected_lines(block.text):
        found = [line for line in lines if re.search(pattern, line)]
        assert len(found) == expected_lines(block.text).count(pattern), (pattern, result.stdout)
    for program, text in TEXTS.items():
        assert program not in block.text or text in result.stdout, result.stdout
    assert result.stdout or "> " in block.text


def comparable(text: str) -> str:
    """Without the prefixes of ranks, and without process ids."""
    return re.sub(r"\((\S+):\d+\)", r"(\1)", re.sub(r"^.*?>:", "", text, flags=re.MULTILINE))


@pytest.mark.parametrize("block", PRINTED, ids=str)
def test_the_output_looks_as_printed(block: Block, folders: dict[str, Path]) -> None:
    folder = folders[block.page]
    result = Place(folder, python_path_of(block)).run(block.after("output of:"))
    printed = (result.stdout + result.stderr).replace(f"{folder}/", "")
    assert comparable(block.text) in comparable(printed) + "\n"


def test_the_config_file_has_every_key_that_is_not_deprecated(folders: dict[str, Path]) -> None:
    config = read_config_file(str(folders["docs/launching.md"] / "horovod.yaml"))
    current = [flag for flag in FLAGS if flag.status is not Status.DEPRECATED]
    assert config.values.keys() == {flag.attribute for flag in current}
    assert config.controller == "gloo"
    assert not config.advice
