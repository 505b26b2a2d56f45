"""``horovodrun experiment``: what can be done with a job file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.experiment.job_file import project_of, read_job_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

DEFAULT_FILE = "riseml.yml"
_JOINED = re.compile(r"(?:-f|--job-file=)(.+)")
_ID = re.compile(r"\d+(?:\.\d+)?")
USAGE = """\
usage: horovodrun experiment VERB [-f FILE] [options of horovodrun]

  init      write a job file to start with
  validate  say everything that is wrong with a job file, or print it in canonical spelling
  plan      print what would run where, and start nothing
  train     run it; the same as horovodrun -f FILE. With -d, in the background; with --resume ID,
            what has not finished of an experiment that was begun
  status    print the experiments of the project, or the runs of one: status ID
  logs      print what the ranks have written: logs [ID | ID.RUN] [--follow]
  kill      end an experiment: kill ID
  monitor   show what each rank does now: monitor [ID] [--json] [--once] [--prometheus PORT]
  export    write it for another system: --format sbatch | job | trainjob | mpijob [--image IMAGE]
            [--output-claim NAME] [--data-claim NAME] [-o PATH]
  schema    print the JSON Schema of job files, for editors

FILE is riseml.yml if it is not given. horovodrun --help lists the options, such as -H."""
_FIRST_FILE = """\
project: {project}
train:
  framework: tensorflow
  tensorflow:
    horovod:
      workers: 2
  resources:
    gpus: 0
    cpus: 1
    mem: 1Gi
  run:
  - python train.py
"""


def manage(words: Sequence[str], run: Callable[[Sequence[str]], int], stdout: TextIO) -> int:
    """Does what the words behind ``horovodrun experiment`` say.

    Args:
        words: a verb and its options.
        run: ``horovodrun`` itself, for the verbs that need hosts.
        stdout: where texts go.

    Returns:
        The exit code.

    Raises:
        UsageError: the verb is not known, or something is wrong with the file.
    """
    verb, *rest = words or ("--help",)
    if verb in ("-h", "--help"):
        print(USAGE, file=stdout)
        return 0
    if verb == "schema":
        from horovod.runner.experiment.schema import json_schema

        print(json.dumps(json_schema(), indent=2), file=stdout)
        return 0
    path, options = _file_of(rest)
    if verb == "train":
        return run(["-f", path, *options])
    if verb == "plan":
        return run(["-f", path, "--dry-run", *options])
    if verb == "export":
        from horovod.runner.experiment.export import export

        return export(path, options, stdout, sys.stderr)
    if verb in ("status", "logs", "kill", "monitor"):
        return _ask(verb, path, options, stdout)
    if verb not in ("init", "validate"):
        raise UsageError(f"horovodrun experiment {verb}: no such verb\n{USAGE}")
    if options:
        raise UsageError(f"horovodrun experiment {verb} knows -f FILE only, not {options[0]!r}")
    if verb == "init":
        return _init(path, stdout)
    experiment = read_job_file(path)
    for line in experiment.warnings:
        print(f"# {line}", file=stdout)
    print(experiment.canonical, end="", file=stdout)
    return 0


def _ask(verb: str, path: str, words: Sequence[str], stdout: TextIO) -> int:
    """About experiments of the project that were begun in this folder."""
    from horovod.runner.experiment import background
    from horovod.runner.experiment.display import monitor
    from horovod.runner.experiment.logs import logs
    from horovod.runner.experiment.record import root_of

    root = root_of(Path.cwd(), project_of(path))
    if verb in ("logs", "monitor"):
        return {"logs": logs, "monitor": monitor}[verb](root, words, stdout)
    name = words[0] if words else None
    if len(words) > 1 or (name is not None and not _ID.fullmatch(name)):
        raise UsageError(f"horovodrun experiment {verb}: expected the number of an experiment")
    if name is not None and "." in name:
        raise UsageError(
            f"horovodrun experiment {verb} {name}: give the number of the experiment, "
            f"{name.partition('.')[0]}; only logs knows single runs"
        )
    if verb == "status":
        return background.status(root, name, stdout)
    if name is None:
        raise UsageError(f"horovodrun experiment {verb}: say which: 'experiment status' lists them")
    return background.kill(root, name, stdout)


def _file_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """The file of ``-f``, and the other words."""
    for index, word in enumerate(words):
        before, after = list(words[:index]), list(words[index + 1 :])
        if word in ("-f", "--job-file"):
            if not after:
                raise UsageError(f"{word}: expected a file")
            return after[0], before + after[1:]
        if joined := _JOINED.fullmatch(word):
            return joined[1], before + after
    return DEFAULT_FILE, list(words)


def _init(path: str, stdout: TextIO) -> int:
    name = "".join(each if each.isalnum() or each in "._-" else "-" for each in Path.cwd().name)
    project = name if name[:1].isascii() and name[:1].isalnum() else "example"
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(_FIRST_FILE.format(project=project if project.isascii() else "example"))
    except FileExistsError:
        raise UsageError(f"{path} is there already, and is left as it is") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    print(f"wrote {path}: 'horovodrun -f {path}' runs it", file=stdout)
    return 0
