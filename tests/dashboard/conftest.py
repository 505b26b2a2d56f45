"""The browser of the tests."""

from browser import browser  # noqa: F401
