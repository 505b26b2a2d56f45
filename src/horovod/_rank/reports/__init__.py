"""The reports of a rank about itself: where it waits, and how it ended."""
