"""Values that training logs: averaged over the ranks, and written once per job (``hvd.log``)."""
