"""The path where scripts import the parts of elastic states."""

from horovod._train.elastic.run import run_fn
from horovod._train.elastic.state import HostUpdateResult, ObjectState, State

__all__ = ["HostUpdateResult", "ObjectState", "State", "run_fn"]
