"""Training by tf_keras between real processes, as scripts ask for it that know no Keras 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras2_cases import everything, expected_names

import horovod

if TYPE_CHECKING:
    import pytest


def test_every_optimizer_trains_as_one_process_with_all_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    everyones = horovod.run(everything, num_proc=2)
    assert everyones == [expected_names()] * 2
