"""A job: its store, its secret, and who takes part in which generation, without any launcher.

A *worker* is a process with an identity of its own. In each *generation* of the job it has a
*place* (:class:`Place`: rank, size, …); the next generation may give it another one, without a new
process. Whoever starts processes, say a launcher, Ray or Spark, opens a :class:`Job`, gives each
process what :class:`Assignment` holds, and publishes generations.
"""

from horovod._job.assigned import assigned
from horovod._job.environment import Assignment, StoreAddress
from horovod._job.membership import Member, Membership, Worker, assign_places
from horovod._job.place import Place

__all__ = [
    "Assignment",
    "Member",
    "Membership",
    "Place",
    "StoreAddress",
    "Worker",
    "assign_places",
    "assigned",
]
