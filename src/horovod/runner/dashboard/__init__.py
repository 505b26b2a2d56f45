"""``horovodrun dashboard`` and ``horovodrun watch``: what a running job does, live.

Both are processes of their own that read the launcher's stream
(:mod:`horovod.runner.observation`), so a slow browser or terminal cannot hold up a job.
"""
