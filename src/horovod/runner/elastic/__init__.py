"""What elastic training knows of hosts that come and go; training itself is still to come."""
