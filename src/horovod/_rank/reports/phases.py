"""Finds in which phase of a step the main thread of a rank is, by looking at its stack.

This works for any program and framework, and needs nothing from it. Where a framework runs a whole
step in one call, as a compiled function does, all of it counts as "compute".
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import horovod
from horovod._rendezvous.observed import BACKWARD, COMPUTE, INPUT, OPTIMIZER, WAIT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_OWN = os.path.join(os.path.dirname(horovod.__file__), "")
_OWN_DATA = os.path.join(_OWN, "data", "")
_STDLIB = os.path.join(os.path.dirname(threading.__file__), "")
_LIBRARIES = ("site-packages", "dist-packages")
_LOADERS = (
    "/torch/utils/data/",
    "/tensorflow/python/data/",
    "/grain/",
    "/webdataset/",
    "/datasets/",
    "/litdata/",
    "/keras/src/trainers/data_adapters/",
    _OWN_DATA,
)
_BACKWARD = ("/torch/autograd/", "/torch/_tensor.py", "/tensorflow/python/eager/backprop.py")
_OPTIMIZERS = ("/torch/optim/", "/keras/src/optimizers/", "/tf_keras/src/optimizers/", "/optax/")
_MOST_FRAMES = 200
_CO_GENERATOR = 0x20  # that of inspect, which takes long to load


class Frame(NamedTuple):
    """A frame of a stack.

    Attributes:
        file, line, function: where it is.
        generator: key of its code if it is a generator; 0 otherwise.
    """

    file: str
    line: int
    function: str
    generator: int = 0


def phase_of(stack: Sequence[Frame], trains_in: set[int]) -> str:
    """Return the phase of a step. Pure but for ``trains_in``.

    A generator of the user's program that is being asked for its next value loads input, unless
    training itself was seen inside of it.

    Args:
        stack: the innermost frame first.
        trains_in: generators inside of which training was seen; updated.
    """
    user = [frame for frame in stack if not is_library(frame.file)]
    found = _phase_by_libraries(stack)
    generators = {frame.generator for frame in user if frame.generator}
    if found in (WAIT, BACKWARD, OPTIMIZER):
        trains_in |= generators
    elif found == COMPUTE and generators - trains_in:
        return INPUT
    return found


def _phase_by_libraries(stack: Sequence[Frame]) -> str:
    marked = set()
    innermost_seen = False
    for frame in stack:
        kind = _kind_of(frame.file)
        if not (innermost_seen or kind.is_stdlib):
            innermost_seen = True
            if kind.waits:
                return WAIT
        marked.add(kind.phase)
    return next((phase for phase in (INPUT, BACKWARD, OPTIMIZER) if phase in marked), COMPUTE)


def is_library(file: str) -> bool:
    """Return whether a file belongs to Horovod, a library or Python, and not to the program."""
    return _kind_of(file).is_library


class _Kind(NamedTuple):
    is_library: bool
    is_stdlib: bool
    waits: bool  # innermost in a stack, it waits for other ranks
    phase: str


# A rank has the same files on its stack again and again, and looks at it 20 times per second.
@lru_cache(4096)
def _kind_of(file: str) -> _Kind:
    is_own, is_stdlib = file.startswith(_OWN), file.startswith(_STDLIB)
    marks = ((INPUT, _LOADERS), (BACKWARD, _BACKWARD), (OPTIMIZER, _OPTIMIZERS))
    return _Kind(
        is_library=is_own
        or is_stdlib
        or file.startswith("<frozen ")
        or any(name in file for name in _LIBRARIES),
        is_stdlib=is_stdlib,
        waits=is_own and not file.startswith(_OWN_DATA),
        phase=next((phase for phase, parts in marks if any(part in file for part in parts)), ""),
    )


def place_of(stack: Sequence[Frame]) -> str:
    """Return the innermost line of the user's program, as "file:line in function"."""
    for frame in stack:
        if not is_library(frame.file):
            return f"{os.path.basename(frame.file)}:{frame.line} in {frame.function}"
    return ""


class PhaseSampler:
    """Looks at the main thread; for the thread that reports.

    Attributes:
        samples: how often it was seen in each phase.
        now: the phase of the last sample.
    """

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self.now = ""
        self._places: Counter[tuple[str, str]] = Counter()
        self._trains_in: set[int] = set()

    def sample(self) -> None:
        """Look once."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if frame is None:
            return
        stack = _stack_of(frame)
        self.now = phase_of(stack, self._trains_in)
        self.samples[self.now] += 1
        self._places[self.now, place_of(stack)] += 1

    def take_places(self) -> dict[str, str]:
        """Return where the thread was seen most often in each phase since the last call."""
        most: dict[str, str] = {}
        for (phase, place), _ in self._places.most_common():
            most.setdefault(phase, place)
        self._places.clear()
        return most


def _stack_of(frame: FrameType | None) -> list[Frame]:
    frames: list[Frame] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        code = frame.f_code
        generator = id(code) if code.co_flags & _CO_GENERATOR else 0
        frames.append(Frame(code.co_filename, frame.f_lineno, code.co_name, generator))
        frame = frame.f_back
    return frames
