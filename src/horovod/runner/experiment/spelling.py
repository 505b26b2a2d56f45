"""Earlier spellings of job files, as the canonical one.

RiseML's documents put the section of Horovod at four different places within one day, and wrote one
worker or many in three ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner.experiment.yaml_tree import Document, Path, Problem

_RETIRED = ("deploy", "description", "repository")
_SERVERS = ("ps", "master")
_RAW = (("parameters",), ("run",), ("env",), ("timeout",))


def canonical(document: Document) -> list[Problem]:
    """Brings the data of a document into the canonical spelling, in place.

    Returns:
        What is wrong beyond what the schema finds.
    """
    problems: list[Problem] = []
    data = document.data
    if not isinstance(data, dict):
        return problems
    _drop_extensions(data)
    for key in _RETIRED:
        if key in data:
            text = "a file of RiseML's alpha version is not supported: only 'train' can be run"
            problems.append(document.problem((key,), text))
            del data[key]
    train = data.get("train")
    if not isinstance(train, dict):
        return problems
    if isinstance(train.get("run"), str):
        train["run"] = [train["run"].strip()]
    if isinstance(train.get("search"), str):
        train["search"] = {"method": train["search"]}
    sections: list[tuple[Path, Any]] = [
        (("train",), train),
        (("train", "tensorflow"), train.get("tensorflow")),
    ]
    for path, section in sections:
        if isinstance(section, dict):
            problems += _move_distributed(document, path, section)
            _spread_workers(document, path, section)
    return problems


def _drop_extensions(data: dict[str, Any]) -> None:
    """Keys that begin with x- are for others."""
    for key in [key for key in data if key.startswith("x-")]:
        del data[key]
    for value in data.values():
        if isinstance(value, dict):
            _drop_extensions(value)


def _move_distributed(document: Document, path: Path, section: dict[str, Any]) -> list[Problem]:
    """``distributed: {type: horovod, worker: 32}`` and ``distributed: {horovod: ...}``."""
    if "distributed" not in section:
        return []
    found, here = section.pop("distributed"), (*path, "distributed")
    if found is False or found is None:
        return []
    if not isinstance(found, dict):
        return [document.problem(here, "must be false, or say how many workers there are")]
    servers = [key for key in _SERVERS if key in found]
    if servers:
        text = (
            "training with parameter servers is not supported: Horovod trains without them; write "
            "horovod: {workers: N}"
        )
        return [document.problem((*here, servers[0]), text)]
    if found.get("type", "horovod") != "horovod":
        return [document.problem((*here, "type"), f"{found['type']!r} is not known: use horovod")]
    found.pop("type", None)
    inner = found.pop("horovod", None)
    moved = inner if isinstance(inner, dict) else found
    section.setdefault("horovod", moved)
    _rename(document, (*here, "horovod") if isinstance(inner, dict) else here, (*path, "horovod"))
    if isinstance(inner, dict) and found:
        return [document.problem((*here, min(found)), "cannot be combined with horovod here")]
    return []


def _spread_workers(document: Document, path: Path, section: dict[str, Any]) -> None:
    """``worker`` for ``workers``, and a number for a count."""
    horovod = section.get("horovod")
    if not isinstance(horovod, dict):
        return
    here: Path = (*path, "horovod")
    if "worker" in horovod and "workers" not in horovod:
        horovod["workers"] = horovod.pop("worker")
        _rename(document, (*here, "worker"), (*here, "workers"))
    workers = horovod.get("workers")
    if isinstance(workers, int) and not isinstance(workers, bool):
        horovod["workers"] = {"count": workers}


def _rename(document: Document, old: Path, new: Path) -> None:
    """Notes where things stand that have moved to another path."""
    size = len(old)
    for path, position in list(document.positions.items()):
        if path[:size] == old:
            document.positions.setdefault((*new, *path[size:]), position)


def is_raw(path: Path) -> bool:
    """Whether a scalar counts as it is written: versions, times, lines, values of parameters."""
    return path[-1:] == ("version",) or (path[0:1] == ("train",) and path[1:2] in _RAW)
