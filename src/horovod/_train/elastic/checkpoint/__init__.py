"""Commits in files, from which a job goes on that has lost all of its workers."""
