"""``horovod.run``: a Python function on every rank of a new job.

run      the function itself
task     what each of its ranks executes
"""
