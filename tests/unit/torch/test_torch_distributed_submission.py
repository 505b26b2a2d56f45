"""What a group of torch.distributed keeps of its operations."""

from __future__ import annotations

import gc
import weakref
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch

from horovod.torch.distributed.submission import _MOST_COUNTS, Submitter


class EndedHandle:
    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float = 0.0) -> bool:
        return True


def start(submitter: Submitter) -> Any:
    options: Any = SimpleNamespace(timeout=timedelta(0))
    handle: Any = EndedHandle()
    return submitter.start("allreduce", options, lambda _: handle, [torch.ones(1)], keep=None)


def test_the_count_of_ranks_is_kept_until_cpp_code_has_waited_for_it() -> None:
    """However many sums of one number others have waited for meanwhile."""
    group: Any = SimpleNamespace(engine=SimpleNamespace(close=lambda reason: None))
    submitter = Submitter(group, "a group", timedelta(seconds=9))
    count = weakref.ref(start(submitter))
    for _ in range(3 * _MOST_COUNTS):
        start(submitter).wait()
    gc.collect()
    work = count()
    assert work is not None
    work.wait()
    del work
    for _ in range(2 * _MOST_COUNTS):
        start(submitter)  # nobody waits
    gc.collect()
    assert count() is None
    assert len(submitter._counts) == _MOST_COUNTS
    submitter.close()
