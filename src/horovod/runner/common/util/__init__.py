"""Keeps the path by which libraries import the launcher's classes for hosts."""
