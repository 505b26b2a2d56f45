"""Where earlier versions had what elastic training knows of hosts that come and go."""
