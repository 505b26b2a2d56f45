"""Where scripts and libraries for earlier versions look for what all adapters share."""
