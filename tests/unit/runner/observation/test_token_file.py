"""The token for metrics: one for a user, whole, and private."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.observation.token_file import token_path, user_token

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def test_jobs_that_start_together_have_the_same_token() -> None:
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(lambda _: user_token(), range(32)))
    assert tokens == {token_path().read_text()}
    assert token_path().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in token_path().parent.iterdir()] == ["metrics.token"]


def test_a_token_that_others_can_read_is_refused() -> None:
    user_token()
    token_path().chmod(0o640)
    with pytest.raises(UsageError, match=r"other users may read it .* chmod it to 0600"):
        user_token()


def test_a_damaged_token_is_refused() -> None:
    user_token()
    token_path().write_text("")
    with pytest.raises(UsageError, match="has no token"):
        user_token()
