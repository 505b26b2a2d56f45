"""Where libraries look for what the launcher knows of hosts."""
