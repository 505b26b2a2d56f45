"""The files of a checkpoint in shares."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horovod._train.share_files import MANIFEST, Manifest, part_name, publish, write_part

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S = 3600.0


def leave(folder: Path, name: str, hours_ago: float) -> str:
    path = folder / name
    path.write_bytes(b"killed")
    at = path.stat().st_mtime - hours_ago * HOUR_S
    os.utime(path, (at, at))
    return name


def test_parts_of_saves_that_were_killed_are_removed_after_an_hour(tmp_path: Path) -> None:
    leave(tmp_path, part_name("0" * 16, 3, 4), 2.0)
    leave(tmp_path, part_name("1" * 16, 0, 4) + ".host-a-77-0.part", 2.0)
    of_other_job = leave(tmp_path, part_name("2" * 16, 0, 4), 0.9)
    of_user = leave(tmp_path, "shares-of-mine-0-of-4", 99.0)
    mine = [part_name("3" * 16, rank, 2) for rank in range(2)]
    parts = [write_part(tmp_path, name, (), {"elements": []}) for name in mine]
    long_ago = (tmp_path / mine[1]).stat().st_mtime - 5 * HOUR_S
    os.utime(tmp_path / mine[1], (long_ago, long_ago))  # its writer waited for the other one
    publish(tmp_path, Manifest((), tuple(parts)))
    assert {*os.listdir(tmp_path)} == {MANIFEST, *mine, of_other_job, of_user}
