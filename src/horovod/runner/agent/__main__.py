"""Starts the agent of a host."""

from __future__ import annotations

import sys

from horovod.runner.agent.agent import main

if __name__ == "__main__":
    sys.exit(main())
