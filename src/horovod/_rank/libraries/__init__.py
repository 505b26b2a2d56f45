"""Libraries that are found at run time."""
