"""tf.data's service in the tasks of Spark."""
