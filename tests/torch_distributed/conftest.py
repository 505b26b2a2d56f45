"""Makes the suite importable, here and in the processes that ``horovod.run`` starts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
