"""The ranks' view of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@dataclass(frozen=True)
class RemoteStore:
    """Paths of a store for one run and one data set; it can be pickled.

    Attributes:
        train_data_path, val_data_path, test_data_path: folders of Parquet.
        saving_runs: whether checkpoints and logs are kept.
        runs_path, run_path: folders of all runs and of this one.
        checkpoint_path, logs_path: folders of this run; None if runs are not kept.
        checkpoint_filename, logs_subdir: names in the folder of the run.
        get_local_output_dir: gives a context with a temporary folder.
        sync: copies the contents of a local folder into that of the run.
    """

    train_data_path: str
    val_data_path: str
    test_data_path: str
    saving_runs: bool
    runs_path: str
    run_path: str
    checkpoint_path: str | None
    logs_path: str | None
    checkpoint_filename: str
    logs_subdir: str
    get_local_output_dir: Callable[[], AbstractContextManager[str]]
    sync: Callable[[str], None]
