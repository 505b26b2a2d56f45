"""Lets the ranks of a job find and trust each other, before the native engine takes over.

Everything that listens here speaks only to peers that prove to know the job's secret
(:mod:`~horovod._rendezvous.handshake`). Messages to the store are protected against change,
replay and injection (:mod:`~horovod._rendezvous.framing`), but they are not encrypted. Nothing is
pickled. This package does not export how a rank connects to its peers
(:mod:`~horovod._rendezvous.peers`): a launcher starts faster without it.
"""

from horovod._rendezvous.roster import HOSTS_KEY
from horovod._rendezvous.secret import make_secret, read_secret, write_secret
from horovod._rendezvous.server import StoreServer
from horovod._rendezvous.store import StoreClient

__all__ = [
    "HOSTS_KEY",
    "StoreClient",
    "StoreServer",
    "make_secret",
    "read_secret",
    "write_secret",
]
