"""Saving estimators and models: one JSON document, in the layout of Spark's own stages.

Loading unpickles, which can run any code: load only what you trust.
"""

from __future__ import annotations

import base64
import json
import os
import time
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyspark
from pyspark.ml.util import MLReader, MLWritable, MLWriter

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.ml.param import Param, Params

    from horovod.spark.common.param_table import TableParams

NOT_SAVED = frozenset({"backend", "store"})
"""Params that belong to a session; give them to ``fit`` after loading."""


class Saved(MLWritable):  # type: ignore[misc]
    """Lets a class of Params be saved and loaded; a subclass says how values are encoded."""

    def write(self) -> ParamsWriter:
        """A writer, as of all stages of Spark: ``stage.write().overwrite().save(path)``."""
        return ParamsWriter(self)

    def save(self, path: str) -> None:
        """Saves this stage; ``backend`` and ``store`` are left out.

        Args:
            path: a folder that does not exist, in any file system of Spark or of the store.
        """
        self.write().save(path)

    @classmethod
    def read(cls) -> ParamsReader:
        """A reader, as of all stages of Spark."""
        return ParamsReader(cls)

    @classmethod
    def load(cls, path: str) -> Any:
        """Loads what ``save`` has written.

        Args:
            path: the folder. What lies there can run any code.

        Raises:
            UsageError: something else lies there.
        """
        return cls.read().load(path)

    def _encode(self, name: str, value: Any) -> bytes:
        return bytes(cloudpickle.dumps(value))

    def _decode(self, name: str, data: bytes, others: Mapping[str, Any]) -> Any:
        return cloudpickle.loads(data)


def document_of(stage: Params) -> str:
    """The text that describes a stage."""
    kind = type(stage)
    return json.dumps(
        {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "timestamp": round(time.time() * 1000),
            "sparkVersion": pyspark.__version__,
            "uid": stage.uid,
            "paramMap": _encoded(stage, stage._paramMap),
            "defaultParamMap": _encoded(stage, stage._defaultParamMap),
        }
    )


def stage_of(kind: type, text: str) -> Any:
    """The stage that a text describes.

    Args:
        kind: its class.
        text: of :func:`document_of`.

    Raises:
        UsageError: it describes something else.
    """
    try:
        document = json.loads(text)
        saved, names = document["paramMap"], document["class"].split(".")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{kind.__name__}.load: this is no saved stage of Spark") from None
    if names[-1] != kind.__name__:
        raise UsageError(f"{kind.__name__}.load: what was saved is a {document['class']}")
    stage: TableParams = kind()
    stage._resetUid(document["uid"])
    values: dict[str, Any] = {}
    # What the decoding of others needs comes first.
    first = ("custom_objects", "model")
    for name in [*(name for name in first if name in saved), *(set(saved) - set(first))]:
        data = saved[name]
        values[name] = None
        if data is not None:
            values[name] = stage._decode(name, base64.b64decode(data), values)
    # What a later version has saved and this one does not know is left out.
    stage.setParams(**{name: value for name, value in values.items() if name in stage.param_rows})
    return stage


class ParamsWriter(MLWriter):  # type: ignore[misc]
    """Writes a stage through its store if it has one, otherwise through Spark.

    Args:
        stage: what to save.
    """

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:
        """Writes the document to ``<path>/metadata``."""
        text = document_of(self._stage)
        place = os.path.join(path, "metadata")
        store = self._stage.value("store") if "store" in self._stage.param_rows else None
        if store is None:
            frame = self.sparkSession.createDataFrame([(text,)], ["value"])
            frame.coalesce(1).write.text(place)
            return
        if store.exists(place) and not self.shouldOverwrite:
            raise UsageError(f"save: {path} exists; use write().overwrite().save(path)")
        store.write_text(place, text)


class ParamsReader(MLReader):  # type: ignore[misc]
    """Reads what :class:`ParamsWriter` has written.

    Args:
        kind: the class of the stage.
    """

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """Reads ``<path>/metadata``."""
        lines = self.sparkSession.read.text(os.path.join(path, "metadata"))
        return stage_of(self._kind, lines.first()[0])


def _encoded(stage: Any, values: Mapping[Param, Any]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for param, value in values.items():
        found[param.name] = None
        if value is not None and param.name not in NOT_SAVED:
            found[param.name] = base64.b64encode(stage._encode(param.name, value)).decode()
    return found
