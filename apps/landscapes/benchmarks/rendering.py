"""Measures the renderer: processor time a pair at 64 and 128 pixels, on one core.

Usage: ``python rendering.py [PAIRS]``. Prints the mean over PAIRS (60) and the slowest pair.
"""

from __future__ import annotations

import sys
import time

from landscapes.render import render_pair

LIMITS_MS = {64: 25, 128: 100}


def measure(size: int, pairs: int) -> tuple[float, float]:
    """Return mean and maximum of the processor time of a pair, in milliseconds."""
    took = []
    for index in range(pairs):
        began_at = time.process_time()
        render_pair(1, index, size)
        took.append(1e3 * (time.process_time() - began_at))
    return sum(took) / pairs, max(took)


def main() -> None:
    """Measure each size after all fields and outlines are made."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    measure(32, 20)
    for size, limit in LIMITS_MS.items():
        mean, most = measure(size, pairs)
        print(f"{size} px: {mean:.1f} ms a pair, at most {most:.1f}; limit {limit}")


if __name__ == "__main__":
    main()
