"""``horovodrun doctor``: what in a script and its environment means something else than before.

command      which scripts are read, and what is printed
examination  pure: scripts and variables
exports      what modules offer
rules        what changed in Horovod
frameworks   what changed in TensorFlow and Keras
"""
