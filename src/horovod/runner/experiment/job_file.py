"""Reads a job file, and says everything that is wrong with it at once."""

from __future__ import annotations

import difflib
import re
import typing
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

from horovod.errors import UsageError
from horovod.runner.experiment.grid import (
    SHELL,
    Line,
    Run,
    filled,
    range_values,
    runs_of,
    variable_of,
)
from horovod.runner.experiment.line_checks import (
    changed_values,
    doubtful_lines,
    unused,
    wrong_placeholders,
)
from horovod.runner.experiment.schema import (
    LEAST_MEBIBYTES,
    OF_VERSION_2,
    Between,
    BetweenOf,
    Horovod,
    JobFile,
    RangeOf,
    Workers,
    duration_s,
    shell_words,
)
from horovod.runner.experiment.search import sampled
from horovod.runner.experiment.spelling import canonical, is_raw
from horovod.runner.experiment.yaml_tree import Document, Path, Problem, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The versions of RiseML's table, of which none runs on a Python of today.
_HISTORICAL = ("1.4", "1.5")
# What a parameter must not change: the programs and the ranks would not be found.
_RESERVED = re.compile(
    r"OUTPUT_DIR|EXPERIMENT_(?:ID|LINE|ATTEMPT)|PATH|HOME|SHELL|PWD|IFS|(?:HOROVOD|LD|PYTHON|BASH)(?:_?[A-Z].*)?"
)


@dataclass(frozen=True)
class Experiment:
    """Contents of a job file, checked.

    Attributes:
        path: of the file, for messages.
        file: its contents, in the canonical spelling.
        workers: how many workers.
        processes: how many processes each has: one per GPU, or one.
        runs: what to run; one if the file has no parameters.
        warnings: what is doubtful, with its line.
    """

    path: str
    file: JobFile
    workers: int
    processes: int
    runs: tuple[Run, ...]
    warnings: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.workers * self.processes

    @property
    def threads(self) -> int | None:
        """Number of a worker's CPUs for each of its processes; None if the file names none."""
        cpus = self.file.train.resources.cpus
        return None if cpus is None else max(1, int(cpus / self.processes))

    @property
    def shell(self) -> tuple[str, ...]:
        """The words after which a line is the last argument."""
        return self.runs[0].lines[0].shell

    @property
    def install(self) -> tuple[str, ...]:
        """Commands to run once on each host before the lines."""
        image = self.file.train.image
        own = [] if image is None or isinstance(image, str) else image.install
        return (*own, *self.file.train.install)

    @property
    def sizes(self) -> tuple[int, int | None] | None:
        """The fewest and the most ranks of an elastic job; None if their number stays."""
        elastic = self.file.train.elastic
        if elastic is None:
            return None
        most = None if elastic.max is None else elastic.max * self.processes
        return elastic.min * self.processes, most

    @property
    def timeout_s(self) -> float | None:
        """Time limit of a run; None for no limit."""
        text = self.file.train.timeout
        return None if text is None else duration_s(text)

    @property
    def canonical(self) -> str:
        """The file as it would be written today."""
        return canonical_text(self.data)

    @property
    def data(self) -> dict[str, Any]:
        """Contents of the file as data that the caller may change."""
        return self.file.model_dump(exclude_unset=True, exclude_none=True)


def canonical_text(data: Mapping[str, Any]) -> str:
    """Data as YAML, whose long lines stay in one piece. Pure."""
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=10_000))


def read_job_file(path: str) -> Experiment:
    """Reads a job file.

    Raises:
        UsageError: it cannot be read, or something is wrong with it; each line names file, line,
            column and key.
    """
    return parse_job_file(_text_at(path), path)


def project_of(path: str) -> str:
    """The project of a job file, whatever else is wrong with it.

    Raises:
        UsageError: it cannot be read, or names no project.
    """
    document = load(_text_at(path), is_raw)
    project = document.data.get("project") if isinstance(document.data, dict) else None
    if not isinstance(project, str) or "/" in project or project.startswith("."):
        raise UsageError(f"{path} names no project")
    return project


def _text_at(path: str) -> str:
    try:
        return FilePath(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the job file {path}: {error}") from None


def parse_job_file(text: str, path: str) -> Experiment:
    """Checks the text of a job file; see :func:`read_job_file`."""
    document = load(text, is_raw)
    problems = document.problems
    if document.data is None and not problems:
        problems = [Problem(1, 1, "", "the file is empty: 'horovodrun experiment init' writes one")]
    if problems and document.data is None:
        raise _error(problems, path)
    problems = [*problems, *canonical(document), *wrong_placeholders(document)]
    try:
        file = JobFile.model_validate(document.data)
    except ValidationError as error:
        raise _error([*problems, *_complaints(error, document)], path) from None
    found = _Meaning(document, file)
    if problems or found.problems:
        raise _error([*problems, *found.problems], path)
    warnings = tuple(_line(warning, path) for warning in sorted(found.warnings))
    return Experiment(path, file, *found.shape, tuple(found.runs), warnings)


def _error(problems: Sequence[Problem], path: str) -> UsageError:
    return UsageError("\n".join(_line(problem, path) for problem in sorted(set(problems))))


def _line(problem: Problem, path: str) -> str:
    where = f"{path}:{problem.line}:{problem.column}"
    return (
        f"{where}: {problem.path}: {problem.text}" if problem.path else f"{where}: {problem.text}"
    )


# -- what the schema finds


def _complaints(error: ValidationError, document: Document) -> Iterator[Problem]:
    found = {
        _path_of(each["loc"], document, is_missing=each["type"] == "missing"): each
        for each in error.errors()
    }
    misspelled = {
        (*path[:-1], *_meant(path))
        for path, each in found.items()
        if each["type"] == "extra_forbidden"
    }
    for path, each in found.items():
        if each["type"] != "missing" or path not in misspelled:
            yield document.problem(path, _text_of(each, path))


def _path_of(loc: Path, document: Document, *, is_missing: bool) -> Path:
    """Return the path of a value in the file, without the type names that pydantic adds."""
    path: Path = ()
    for index, part in enumerate(loc):
        is_last_of_missing = is_missing and index == len(loc) - 1
        if (*path, part) in document.positions or is_last_of_missing:
            path = (*path, part)
    return path


def _text_of(error: Any, path: Path) -> str:
    kind, given = error["type"], error.get("input")
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        near, names = _meant(path), _names_at(path[:-1])
        hint = f'did you mean "{near[0]}"?' if near else f"here may be {', '.join(names)}"
        return f"unknown key; {hint}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    text = str(error["msg"]).replace("Input should", "must").replace("should", "must")
    if kind == "too_short":
        text = "must not be empty"
    elif kind == "model_type" or kind == "dict_type":
        text = "must have keys of its own"
    return text if isinstance(given, dict | list) else f"{text}, not {given!r}"


def _meant(path: Path) -> list[str]:
    """The key of the schema that is nearest to an unknown one, if any is near."""
    return difflib.get_close_matches(str(path[-1]), _names_at(path[:-1]), 1)


def _names_at(path: Path) -> list[str]:
    """The keys that the schema has at a path."""
    model: type[BaseModel] | None = JobFile
    for part in path:
        if model is not None and part in model.model_fields:
            model = next(_models_in(model.model_fields[str(part)].annotation), None)
    return sorted(model.model_fields) if model is not None else []


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


# -- what no schema can say


class _Meaning:
    """Meaning of a file that has the right form.

    Attributes:
        problems, warnings: what is wrong, and what is doubtful.
        shape: how many workers, and processes of each.
        runs: all combinations of the parameters.
    """

    def __init__(self, document: Document, file: JobFile) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.runs: list[Run] = []
        self._document = document
        self._train = file.train
        self.shape = self._shape()
        each_gpus = self._train.resources.gpus // self.shape[1]
        gpus = each_gpus if each_gpus > 1 else 0  # of one alone, hvd.local_rank() is the number
        shell = SHELL if self._train.shell is None else shell_words(self._train.shell)
        self._lines = [
            Line(each, gpus=gpus, shell=shell)
            if isinstance(each, str)
            else Line(each.cmd, each.on, gpus, shell)
            for each in self._train.run
        ]
        self._check_new_keys(file.version)
        self._check_elastic()
        self._check_memory()
        self._check_version()
        self._check_lines()
        self._combine()

    def _shape(self) -> tuple[int, int]:
        tensorflow = self._train.tensorflow
        horovod = self._train.horovod or (tensorflow.horovod if tensorflow else None)
        workers = (horovod or Horovod(workers=Workers(count=1, processes=None))).workers
        # Without a GPU one process, never none.
        return workers.count, workers.processes or max(1, self._train.resources.gpus)

    def _check_new_keys(self, version: str) -> None:
        for name in self._train.env:
            if _RESERVED.fullmatch(name):
                self._complain(("train", "env", name), "Horovod and the shell need it unchanged")
        if version != "1":
            return
        train = self._train
        paths: list[Path] = [("train", key) for key in OF_VERSION_2 if getattr(train, key)]
        paths += [
            ("train", "run", index)
            for index, each in enumerate(train.run)
            if not isinstance(each, str)
        ]
        if train.framework not in (None, "tensorflow"):
            paths.append(("train", "framework"))
        for path in paths:
            self._complain(path, "is not RiseML's: write 'version: 2' at the top of the file")

    def _check_elastic(self) -> None:
        elastic, workers = self._train.elastic, self.shape[0]
        if elastic is None:
            return
        path = ("train", "elastic")
        if elastic.min > workers or (elastic.max is not None and elastic.max < workers):
            text = f"the initial number of workers, {workers}, must be between min and max"
            self._complain(path, text)
        if self._train.concurrency > 1:
            self._complain(path, "an elastic run may take all hosts: write concurrency: 1")

    def _check_memory(self) -> None:
        memory = self._train.resources.mem
        if isinstance(memory, int):
            unit = "G" if memory < LEAST_MEBIBYTES else "Mi"
            text = (
                f"{memory} is taken as {memory}{unit}: RiseML's documents mean either; write a unit"
            )
            self._warn(("train", "resources", "mem"), text)

    def _check_version(self) -> None:
        tensorflow = self._train.tensorflow
        if tensorflow is not None and tensorflow.version is not None:
            old = tensorflow.version.startswith(_HISTORICAL)
            what = "no current Python supports it" if old else "nothing is installed for it"
            text = f"TensorFlow {tensorflow.version}: {what}; the installed TensorFlow runs instead"
            self._warn(("train", "tensorflow", "version"), text)
        if tensorflow is not None and tensorflow.tensorboard:
            text = "TensorBoard is not started: run 'tensorboard --logdir output'"
            self._warn(("train", "tensorflow", "tensorboard"), text)
        if self._train.image:
            text = "is not used: the lines run in the environment of horovodrun"
            self._warn(("train", "image"), text)

    def _check_lines(self) -> None:
        for path, text in doubtful_lines(self._lines, self.shape[0] * self.shape[1]):
            self._warn(path, text)
        for name in unused(list(self._train.parameters), self._lines):
            text = f"no line uses it; programs find it as the variable {variable_of(name)}"
            self._warn(("train", "parameters", name), text)

    def _combine(self) -> None:
        values: dict[str, list[str]] = {}
        between: dict[str, Between] = {}
        variables: dict[str, str] = {}
        for name, given in self._train.parameters.items():
            path: Path = ("train", "parameters", name)
            other = variables.setdefault(variable_of(name), name)
            if _RESERVED.fullmatch(variable_of(name)):
                self._complain(path, f"a parameter must not set the variable {variable_of(name)}")
            if other != name:
                self._complain(path, f"its variable {variable_of(name)} is that of {other}")
            if isinstance(given, BetweenOf):
                between[name] = given.between
                if self._train.search is None:
                    self._complain((*path, "between"), "applies only to a search: add search")
                continue
            try:
                values[name] = range_values(given.range) if isinstance(given, RangeOf) else given
            except ValueError as error:
                self._complain((*path, "range"), str(error))
        self._check_search()
        if self.problems:
            return
        try:
            self.runs = self._chosen(values, between)
        except ValueError as error:
            key = "parameters" if self._train.search is None else "search"
            self._complain(("train", key), str(error))
        for path, text in changed_values(self._lines, self.runs):
            self._warn(path, text)

    def _check_search(self) -> None:
        search, path = self._train.search, ("train", "search")
        if search is not None and not self._train.parameters:
            self._complain(path, "there are no parameters to choose")
        if search is not None and search.method == "asha" and not self._train.metrics:
            self._complain(path, "asha needs a metric: write metrics: {accuracy: max}")

    def _chosen(self, values: dict[str, list[str]], between: dict[str, Between]) -> list[Run]:
        search = self._train.search
        if search is None:
            return runs_of(values, self._lines)
        return [filled(each, self._lines) for each in sampled(values, between, search)]

    def _complain(self, path: Path, text: str) -> None:
        self.problems.append(self._document.problem(path, text))

    def _warn(self, path: Path, text: str) -> None:
        self.warnings.append(self._document.problem(path, text))
