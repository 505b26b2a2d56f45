"""What a rank reports of itself: where it waits, and how it ended."""
