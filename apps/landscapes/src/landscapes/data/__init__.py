"""Data sets of pairs: shards of rendered pairs, folders of photos, and their checks."""
