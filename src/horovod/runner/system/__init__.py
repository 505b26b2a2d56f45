"""What the operating system gives to launcher and agents alike.

processes    who dies with whom, and who inherits orphans
signals      signals as bytes on a descriptor
environment  what processes inherit: variables and where modules are
"""
