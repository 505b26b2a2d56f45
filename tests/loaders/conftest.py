"""Tests with the libraries that load data, in an environment of their own: `make test-loaders`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "fakes"), str(HERE.parent / "dist")]
