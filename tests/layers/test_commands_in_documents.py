"""No command in README and the documents is overlooked: it runs, or a reason says why not.

What runs does so in tests/examples/test_commands.py.
"""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from pages import PAGES, ROOT, Block, all_blocks, blocks_in, blocks_of
from unrun import fault_of, faults_of_arguments

from horovod.runner.doctor.exports import exported_names

REASONS = {
    "takes minutes",
    "needs a GPU",
    "needs the internet",
    "needs Slurm",
    "needs Kubernetes",
    "needs root",
    "needs a terminal",
    "needs other hosts",
}
PROGRAMS = ("horovodrun", "python", "make", "pip", "mpirun", "srun", "sbatch", "kubectl", "export")
DEADLINE_S = 60.0

BLOCKS = all_blocks()


def commands_that_do_not_run(blocks: list[Block]) -> list[tuple[Block, str]]:
    lines = [(each, line) for each in blocks for line in each.text.splitlines()]
    return [
        (each, line)
        for each, line in lines
        if each.after("not run:") and each.language == "sh" and line.strip()
    ]


def complaints(blocks: list[Block]) -> list[str]:
    """Blocks that hold commands, and do not say whether these run."""
    found = []
    for block in blocks:
        begins = rf"(?:\$ )?(?:\w+=\S+ )*(?:{'|'.join(PROGRAMS)}) "
        looks_so = re.search(rf"^{begins}", block.text, re.MULTILINE)
        if block.language == "sh":
            if not block.runs and block.after("not run:") not in REASONS:
                found.append(f"{block}: neither <!-- run --> nor <!-- not run: REASON --> above it")
        elif block.language in ("", "text", "bash", "shell", "console") and looks_so:
            found.append(f"{block}: commands in a block of another language than sh")
    return found


def test_each_command_runs_or_says_why_not() -> None:
    assert not complaints(BLOCKS)
    assert {block.page for block in BLOCKS if block.mark == "run"} >= {
        "README.md",
        "docs/hosts.md",
        "docs/launching.md",
        "docs/timeline.md",
    }


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nmake test\n```\n",
        "<!-- not run: it is late -->\n```sh\nmake test\n```\n",
        "```\nhorovodrun -np 2 python train.py\n```\n",
        "```console\n$ HOROVOD_TIMELINE=x mpirun -n 2 python train.py\n```\n",
    ],
)
def test_a_command_without_a_mark_is_noticed(text: str) -> None:
    assert len(complaints(blocks_in(text, "README.md"))) == 1


def test_what_does_not_run_names_what_exists() -> None:
    faults = [
        f"{block}: {line}: {fault_of(line, block.page)}"
        for block, line in commands_that_do_not_run(BLOCKS)
        if fault_of(line, block.page)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("page", [*PAGES, "ARCHITECTURE.md"])
def test_commands_within_sentences_name_what_exists(page: str) -> None:
    lines = re.findall(r"`((?:horovodrun|make|python|pip) [^`]+)`", (ROOT / page).read_text())
    faults = [f"{line}: {fault_of(line, page)}" for line in lines if fault_of(line, page)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "command",
    [
        "make test-python PYTEST='tests/unit -k roster'  # some of the tests",
        "horovodrun -np 2 --check -H …",
        "pip install '.[pytorch]'",
        "pip install horovod==0.28.1",
        "HOROVOD_TIMELINE=x python examples/pytorch/digits.py",
    ],
)
def test_what_exists_is_not_complained_about(command: str) -> None:
    assert not fault_of(command)


@pytest.mark.parametrize(
    "command",
    [
        "make tset",
        "make test-python PYTETS=tests",
        "horovodrun --no-such-flag python train.py",
        "python benchmarks/no_such_script.py",
        "python -m horovod.no_such_module",
        "python -m pytest tests/no_such_folder",
        "pip install horovod-no-such-name",
        "pip install '.[no_such_extra]'",
        "pip uninstall .",
        "build/native/native/tests/no_such_tests",
        "no-such-program",
    ],
)
def test_what_does_not_exist_is_noticed(command: str) -> None:
    assert fault_of(command)


def scripts_with_arguments() -> list[str]:
    lines = [line for _, line in commands_that_do_not_run(BLOCKS)]
    return [line for line in lines if line.startswith("python benchmarks/")]


def test_scripts_understand_the_arguments_that_they_get() -> None:
    assert len(scripts_with_arguments()) > 20
    assert not faults_of_arguments(scripts_with_arguments())


def test_an_argument_that_a_script_does_not_have_is_noticed() -> None:
    assert "unrecognized" in faults_of_arguments(["python benchmarks/simulate.py --no-such 1"])


@pytest.mark.parametrize("language", ["sh", "python", "yaml"])
def test_blocks_are_correct_in_their_language(language: str) -> None:
    blocks = [block for block in BLOCKS if block.language == language]
    assert blocks
    for block in blocks:
        if language == "python":
            compile(block.text, str(block), "exec")
        elif language == "yaml":
            assert yaml.safe_load(block.text), str(block)
    if language == "sh":
        text = "\n".join(block.text for block in blocks)
        subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=DEADLINE_S)


def test_python_blocks_use_names_that_exist() -> None:
    torch = pytest.importorskip("horovod.torch")
    of_jax = exported_names("horovod.jax")  # which is not in this environment
    of_tensorflow = exported_names("horovod.tensorflow")  # which takes seconds to import
    missing = [
        f"{block}: hvd.{name}"
        for block in BLOCKS
        if block.language == "python" and "import horovod.keras" not in block.text
        for name in re.findall(r"\bhvd\.(\w+)", block.text)
        if not hasattr(torch, name)
        and not (str(block).startswith("docs/jax.md") and name in of_jax)
        and not ("import horovod.tensorflow as hvd" in block.text and name in of_tensorflow)
    ]
    assert not missing


def test_files_of_a_page_are_used_by_its_commands() -> None:
    unused = []
    for page in PAGES:
        blocks = blocks_of(page)
        used = "".join(block.text for block in blocks if block.runs)
        used += "".join(block.mark for block in blocks if block.after("output of:"))
        names = [block.after("file:") for block in blocks if block.after("file:")]
        unused += [f"{page}: {name}" for name in names if name not in used]
    assert not unused
