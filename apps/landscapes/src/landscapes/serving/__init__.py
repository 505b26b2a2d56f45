"""The page to paint on, and the interface behind it, on this machine alone."""
