"""Wraps services of the operating system for launcher and agents.

processes    who dies with whom, and who inherits orphans
signals      signals as bytes on a descriptor
environment  what processes inherit: variables and where modules are
"""
