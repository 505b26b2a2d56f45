"""The foundation that all other modules use."""
