"""Measures what a model paints, beside controls that must lose."""
