"""``horovodrun``: the command line.

command     from words to a job, a check or a text
options     which words belong to ``horovodrun``, and what they mean
completion  scripts for shells
dry_run     pure: what ``--dry-run`` prints
"""

from __future__ import annotations

from horovod.runner.cli.command import main

__all__ = ["main"]
