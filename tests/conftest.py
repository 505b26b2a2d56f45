"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell lets the jobs that it starts in the background ignore Ctrl-C, and nohup the end of the
# terminal; their children inherit that, and Horovod respects it. Tests of these signals are to run
# there, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
