"""Defines the contents of a job file."""

from __future__ import annotations

import math
import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

Parameter = Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]

_MEMORY = re.compile(r"(\d+)([GM]i?)B?")
_DURATION = re.compile(r"((?!0\d)\d+(?:\.\d+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS = {"Gi": 2**30, "G": 10**9, "Mi": 2**20, "M": 10**6}
# As RiseML's documents use the number: 4 is GB, 4096 MiB.
LEAST_MEBIBYTES = 256


class _Strict(BaseModel):
    """Nothing is guessed, nothing is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Workers(_Strict):
    """Number of workers, and number of processes of each."""

    count: int = Field(ge=1, le=1_000_000)
    processes: int | None = Field(None, ge=1, le=10_000)


_COUNT = {"type": "integer", "minimum": 1}
_TEXT = {"type": ["string", "number", "boolean"]}
_LINE = {"type": "string", "minLength": 1}
AnyWorkers = Annotated[Workers, WithJsonSchema({"anyOf": [_COUNT, Workers.model_json_schema()]})]
Text = Annotated[str, WithJsonSchema(_TEXT)]
Line = Annotated[str, Field(min_length=1)]


class Step(_Strict):
    """A line that not every process runs; the others wait for its end."""

    cmd: Annotated[Line, WithJsonSchema(_LINE)]
    on: Literal["all", "host", "rank0"] = "all"


_STEP = {"anyOf": [_LINE, Step.model_json_schema()]}


def _is_mapping(value: Any) -> str:
    return "mapping" if isinstance(value, dict | BaseModel) else "plain"


Lines = Annotated[
    list[
        Annotated[
            Annotated[Line, Tag("plain")] | Annotated[Step, Tag("mapping")],
            Discriminator(_is_mapping),
        ]
    ],
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_LINE, {"type": "array", "items": _STEP, "minItems": 1}]}),
]


class Horovod(_Strict):
    """Horovod trains on several workers."""

    workers: AnyWorkers


class TensorFlow(_Strict):
    """RiseML's section for TensorFlow."""

    version: Text | None = None
    tensorboard: bool = False
    horovod: Horovod | None = None


def _check_amount(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be an amount of memory: write 4Gi or 4096Mi")
    memory_bytes(value)
    return value


Memory = Annotated[
    int | str,
    BeforeValidator(_check_amount),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["4Gi", "4096Mi"]}),
]


def _check_duration(value: str) -> str:
    duration_s(value)
    return value


Duration = Annotated[
    str,
    AfterValidator(_check_duration),
    WithJsonSchema({"type": ["number", "string"], "examples": ["90s", "2h"]}),
]


def _check_shell(value: str) -> str:
    shell_words(value)
    return value


Shell = Annotated[
    str,
    AfterValidator(_check_shell),
    WithJsonSchema({"type": "string", "examples": ["sh -e -c"]}),
]


def _check_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {value}")
    return value


class Resources(_Strict):
    """Resources that each worker needs."""

    gpus: int = Field(0, ge=0, le=10_000)
    cpus: Annotated[float | None, BeforeValidator(_check_number)] = Field(None, gt=0, strict=False)
    mem: Memory | None = None


class Image(_Strict):
    """A container image, and what is installed into it."""

    name: str
    install: list[str] = []


class Range(_Strict):
    """Values from a least to a greatest one."""

    min: Text
    max: Text
    step: Text


class RangeOf(_Strict):
    """A parameter whose values are a range."""

    range: Range


class Between(_Strict):
    """Bounds of a value that a search chooses: a whole number if both are, unless type says so."""

    min: Text
    max: Text
    type: Literal["int", "float"] | None = None
    log: Annotated[
        Literal["true", "false"], WithJsonSchema({"enum": [True, False, "true", "false"]})
    ] = "false"


class BetweenOf(_Strict):
    """A parameter that a search chooses."""

    between: Between


def _kind_of_values(value: Any) -> str:
    is_between = isinstance(value, BetweenOf) or (isinstance(value, dict) and "between" in value)
    return "between" if is_between else _is_mapping(value)


Values = Annotated[
    Annotated[list[Text], Field(min_length=1), Tag("plain")]
    | Annotated[RangeOf, Tag("mapping")]
    | Annotated[BetweenOf, Tag("between")],
    Discriminator(_kind_of_values),
]


class Search(_Strict):
    """Some runs in place of all combinations."""

    method: Literal["random", "asha"]
    runs: int = Field(10, ge=1, le=10_000)
    seed: int = Field(0, ge=0, lt=2**32)
    min_results: int = Field(1, ge=1)
    reduction: int = Field(4, ge=2)


_METHOD = {"enum": ["random", "asha"]}
AnySearch = Annotated[Search, WithJsonSchema({"anyOf": [_METHOD, Search.model_json_schema()]})]
AnyImage = Annotated[
    Annotated[str, Tag("plain")] | Annotated[Image, Tag("mapping")], Discriminator(_is_mapping)
]


class Elastic(_Strict):
    """Between which numbers of workers a job goes on."""

    min: int = Field(ge=1)
    max: int | None = Field(None, ge=1)


class Train(_Strict):
    """Training to run, and its environment and resources."""

    framework: Literal["tensorflow", "pytorch", "keras", "jax", "mxnet", "none"] | None = None
    tensorflow: TensorFlow | None = None
    horovod: Horovod | None = None
    image: AnyImage | None = None
    install: list[str] = []
    resources: Resources = Resources.model_validate({})
    run: Lines
    shell: Shell | None = None
    parameters: dict[Parameter, Values] = {}
    concurrency: int = Field(1, ge=1)
    env: dict[Variable, Text] = {}
    timeout: Duration | None = None
    restarts: int = Field(0, ge=0, le=1000)
    metrics: dict[str, Literal["max", "min"]] = {}
    search: AnySearch | None = None
    elastic: Elastic | None = None

    @model_validator(mode="after")
    def _one_section(self) -> Train:
        if self.horovod and self.tensorflow and self.tensorflow.horovod:
            raise ValueError("horovod is given here and under tensorflow: keep one of them")
        return self


# Beyond what RiseML had; a file that has one of them says so by its version.
OF_VERSION_2 = ("shell", "env", "timeout", "restarts", "metrics", "search", "elastic")


class JobFile(_Strict):
    """A whole file."""

    version: Annotated[Literal["1", "2"], WithJsonSchema({"enum": ["1", 1, "2", 2]})] = "1"
    project: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    train: Train


def memory_bytes(value: int | str) -> int:
    """Return the number of bytes that ``mem`` asks for. Pure.

    Raises:
        ValueError: it is not an amount of memory.
    """
    if isinstance(value, int):
        if value < 1:
            raise ValueError("must be above 0")
        return value * (_UNITS["G"] if value < LEAST_MEBIBYTES else _UNITS["Mi"])
    found = _MEMORY.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is not an amount of memory: write 4Gi or 4096Mi")
    return int(found[1]) * _UNITS[found[2]]


def duration_s(value: str) -> float:
    """Return the value of ``timeout`` in seconds. Pure.

    Raises:
        ValueError: it is not a length of time above 0.
    """
    found = _DURATION.fullmatch(value)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{value!r} is not a length of time: write 90s, 30m, 2h or 1d")
    return float(found[1]) * _SECONDS[found[2]]


def shell_words(value: str) -> tuple[str, ...]:
    """Return the words of ``shell``, after which a line is the last argument. Pure.

    Raises:
        ValueError: they are no command that takes a line.
    """
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"{value!r} cannot be read: {error}") from None
    if len(words) < 2 or not words[-1].startswith("-"):
        raise ValueError(f"{value!r} must end with the option for a line: write 'sh -e -c'")
    return tuple(words)


def mebibytes(value: int | str) -> int:
    """Return the value of ``mem`` in MiB, rounded up. Pure."""
    return math.ceil(memory_bytes(value) / _UNITS["Mi"])


def json_schema() -> dict[str, Any]:
    """The JSON Schema of job files for editors: as they are written today, with keys for others."""
    schema = JobFile.model_json_schema()
    for each in (schema, *schema["$defs"].values()):
        if each.get("type") == "object":
            each["patternProperties"] = {"^x-": True}
    return schema
