"""The path where libraries import process sets; the frameworks' modules have them, too."""

from horovod._train.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
