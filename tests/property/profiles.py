"""How many examples there are.

``pytest tests/property`` takes some, the same each time; with ``--hypothesis-profile=thorough`` it
takes many, and others each time.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Waits have deadlines of their own; what an example takes depends on the neighbors of the machine.
_BRIEF = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_THOROUGH = settings(_BRIEF, max_examples=3000, derandomize=False)


def register() -> None:
    """Makes the profile known, before pytest looks for the one that it was given."""
    settings.register_profile("thorough", _THOROUGH)


def examples() -> settings:
    """What the tests of this folder are decorated with; others have settings of their own."""
    return _THOROUGH if settings.get_current_profile_name() == "thorough" else _BRIEF
