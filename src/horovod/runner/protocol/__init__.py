"""What launcher and agents say to each other.

frames      kinds and their form on a pipe
invitation  where the launcher's store is, and how to prove oneself to it
"""
