"""The error that the command line reports in one line."""


class LandscapesError(Exception):
    """Input or settings that cannot be used; the text names the place, the problem and a remedy.

    The command line prints the text without a traceback and exits with status 2.
    """
