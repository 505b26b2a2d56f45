"""Runs the command line as ``python -m landscapes``."""

import sys

from landscapes.cli import main

sys.exit(main())
