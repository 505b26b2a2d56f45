"""Keeps the path by which earlier versions exported host discovery for elastic training."""
