"""Elastic training: state that survives changes of the job, and the loop that follows them."""
