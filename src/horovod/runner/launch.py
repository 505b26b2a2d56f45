"""``horovodrun`` under the name that it had in Horovod 0.19 to 0.28.

``python -m horovod.runner.launch`` works, and so do scripts that call :func:`run_commandline`.
"""

from __future__ import annotations

import sys

from horovod.runner.cli import main


def run_commandline() -> None:
    """Runs ``horovodrun`` with the arguments of the process, and ends the process."""
    sys.exit(main())


if __name__ == "__main__":
    run_commandline()
