"""Horovod: take a script that trains on one device, add a few lines, run it on many.

Scripts import the adapter of their framework, such as ``horovod.torch``. This module itself loads
no framework.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod._rank.results import report_result as report_result
    from horovod.runner.function.run import run as run

__version__ = "1.0.0.dev0"
__all__ = ["__version__", "report_result", "run"]


class _AbsentModules:
    """Comes last of all finders, and says what became of a module that earlier versions had."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith("horovod."):
            from horovod._compat.absent import refuse

            refuse(name)


sys.meta_path.append(_AbsentModules)


def __getattr__(name: str) -> Any:
    # run() brings the launcher along, which a training script does not need.
    if name == "run":
        from horovod.runner.function.run import run

        return run
    if name == "report_result":
        from horovod._rank.results import report_result

        return report_result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
