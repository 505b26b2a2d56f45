"""Reads the user's tuning flags and config file.

flags        the table of tuning flags and their variables
config_file  the file of ``--config-file``; its schema follows from flags
"""
