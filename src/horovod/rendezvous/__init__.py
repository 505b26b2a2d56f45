"""How the ranks of a job find and trust each other, before the native engine takes over.

Everything that listens here speaks only to peers that prove to know the job's secret
(:mod:`~horovod.rendezvous.handshake`). Messages to the store are protected against change,
replay and injection (:mod:`~horovod.rendezvous.framing`), but they are not encrypted. Nothing is
pickled. How a rank connects to its peers (:mod:`~horovod.rendezvous.peers`) is not exported here: a
launcher starts faster without it.
"""

from horovod.rendezvous.roster import HOSTS_KEY
from horovod.rendezvous.secret import make_secret, read_secret, write_secret
from horovod.rendezvous.server import StoreServer
from horovod.rendezvous.store import StoreClient

__all__ = [
    "HOSTS_KEY",
    "StoreClient",
    "StoreServer",
    "make_secret",
    "read_secret",
    "write_secret",
]
