"""What the user says beside the command.

flags        the table of tuning flags and their variables
config_file  the file of ``--config-file``; its schema follows from flags
"""
