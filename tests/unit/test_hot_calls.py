"""What training loops do all the time takes few calls of Python, counted, as times vary."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod import _native
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM

if TYPE_CHECKING:
    from collections.abc import Callable


def _calls_in(function: Callable[[], object]) -> list[str]:
    """The functions that it calls, of Python and of C."""
    calls: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)
        elif event == "c_call":
            calls.append(argument.__name__)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls[:-1]  # the last one ends the profile


def test_hot_calls_take_few_calls_of_python() -> None:
    context.init()
    try:
        assert _calls_in(context.rank) == ["rank", "current_config", "get"]
        # An optimizer may have counted steps, in another test of this process.
        context.step()
        expected = ["step", "get", "count_by_hand", "_note", "monotonic", "append"]
        assert _calls_in(context.step) == expected
        allreduce = context.global_group().allreduce
        array = np.ones(1, np.float32)
        view = [_native.Buffer(array.ctypes.data, "float32", (1,))]
        options = {"reduction": PLAIN_SUM, "name": "t", "call_site": "train.py:7", "keep": array}
        allreduce(view, view, **options).wait()  # the first one makes what others find
        calls = _calls_in(lambda: allreduce(view, view, **options).wait())
        # nanobind's functions are no functions of C for the profiler
        assert calls == ["<lambda>", "allreduce", "get"]
        now = context.global_group().allreduce_now
        calls = _calls_in(lambda: now(view[0], view[0], PLAIN_SUM, "t", "train.py:7", array))
        assert calls == ["<lambda>", "allreduce_now", "get"]
        later = context.global_group().allreduce_later
        taken = view[0], view[0], PLAIN_SUM, "t", "train.py:7", array
        assert _calls_in(lambda: later(*taken).wait()) == ["<lambda>", "allreduce_later", "get"]
    finally:
        context.shutdown()
