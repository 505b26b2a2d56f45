"""One rank of test_mxnet_contract.py: runs every check, and prints their names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "contract"))

from mxnet_api import run_all_checks

if __name__ == "__main__":
    print("\n".join(run_all_checks()), flush=True)
