"""Import paths of earlier versions."""
