"""The output of ranks.

output   prefixes on the console, and files
console  the launcher's own stdout and stderr; writer is the thread behind each
outlets  where bytes go
lines    prefixes and the last lines of a stream
"""
