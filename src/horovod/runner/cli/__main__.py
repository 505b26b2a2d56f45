"""``python -m horovod.runner.cli`` is ``horovodrun``."""

from __future__ import annotations

import sys

from horovod.runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
