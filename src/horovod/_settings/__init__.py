"""Every ``HOROVOD_…`` variable: what it means, and whether anything acts on it.

The table is data and reads nothing. :mod:`horovod._settings.config` turns variables into a Config
with it, and ``python -m horovod._settings.document`` writes it into docs/settings.md.
"""

from __future__ import annotations

from horovod._settings.honored import OTHERS, HonoredSettings
from horovod._settings.setting import settings_by_field
from horovod._settings.unused import UNUSED

FIELDS = settings_by_field(HonoredSettings)
"""The settings that Config holds, by its field."""

TABLE = {setting.name: setting for setting in (*FIELDS.values(), *OTHERS, *UNUSED)}
"""All settings by the name of their variable, in the order of the documentation."""
