"""``horovodrun report-issue``: one file about this machine and the last failures, without secrets.

command    the command line, and the file
contents   what is in it
redaction  pure: which parts of a text are replaced
"""
