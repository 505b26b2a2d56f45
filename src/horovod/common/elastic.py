"""Where scripts look for what states of elastic training are made of."""

from horovod.train.elastic.run import run_fn
from horovod.train.elastic.state import HostUpdateResult, ObjectState, State

__all__ = ["HostUpdateResult", "ObjectState", "State", "run_fn"]
