"""What ``horovod.keras`` and ``horovod.tensorflow.keras`` share: Keras 2 and 3 on TensorFlow.

Both generations may be there at once. Which one counts follows from the classes of what the script
hands over (:mod:`horovod._keras.generation`); nothing here imports a Keras of its own accord.
"""

from horovod._keras.generation import refuse_other_backends

refuse_other_backends()
