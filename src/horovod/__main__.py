"""``python -m horovod`` is ``horovodrun``."""

from __future__ import annotations

import sys

from horovod.runner.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
