"""Reading data with a job of its own: tf.data's service, run by Horovod."""
