"""``horovodrun doctor``: what in a script and its environment means something else than before.

interface_028: the table of variables, flags and names of Horovod 0.28, with what became of each

command      which scripts are read, and what is printed
examination  pure: scripts and variables
shell        pure: shell scripts
document     writes the table of interface_028 into the documentation
exports      what modules offer
rules        what changed in Horovod
frameworks   what changed in TensorFlow and Keras
"""
