"""What becomes of an elastic job, whose hosts and workers come and go."""
