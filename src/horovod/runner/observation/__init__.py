"""What a job does, as one stream: assembled by the launcher while somebody watches.

From the reports of the ranks (:mod:`horovod._rendezvous.observed`), :mod:`assembler` makes one
:class:`records.JobView` after the other, and :mod:`verdicts` says why steps are slow; both are
pure. :mod:`stream` runs them beside a job and serves the views to processes of the same user,
through which the page, the terminal and Prometheus see the same.
"""
