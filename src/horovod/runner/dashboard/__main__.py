"""The process that serves the page of ``horovodrun --dashboard``."""

import sys

from horovod.errors import UsageError
from horovod.runner.dashboard.command import show

try:
    sys.exit(show("dashboard", sys.argv[1:], sys.stdout))
except UsageError as error:
    sys.exit(str(error))
