from __future__ import annotations

from horovod._rendezvous.table import Table
from horovod.runner.supervision.early_exit import blame, leave_note, note
from horovod.runner.supervision.failure import RankExit


def ended(rank: int, returncode: int, *tail: str) -> RankExit:
    return RankExit(rank, "a", returncode, 0.0, tail)


def left_by(returncode: int, **values: bytes) -> dict[str, bytes]:
    """What the launcher leaves in the store at the end of rank 1."""
    table = Table()
    for key, value in values.items():
        table.set(key.replace("_", "/"), value)
    before = set(values)
    found: dict[str, bytes] = {}

    def look_up(key: str) -> bytes | None:
        table.wait([key], "", 0.0, 0.0, found.update)
        return found.get(key)

    leave_note(ended(1, returncode), look_up, table.add)
    keys = [f"peers/{g}.{count}/failed" for g in range(3) for count in range(4)]
    return {key: text for key in keys if (text := look_up(key)) and key not in before}


def test_a_note_for_the_round_that_the_rank_never_began() -> None:
    text = b"rank 1 on a exited with code 0 before hvd.init()"
    assert left_by(0) == {"peers/0.1/failed": text}
    text = b"rank 1 on a exited with code 0 before another hvd.init()"
    assert left_by(0, peers_latest_1=b"0.2") == {"peers/0.3/failed": text}
    assert left_by(0, peers_latest_1=b"2.1") == {"peers/2.2/failed": text}


def test_no_note_about_a_failure() -> None:
    assert left_by(1) == {}


def test_blame_names_who_waited() -> None:
    early = ended(1, 0)
    error = f"horovod.errors.StartError: {note(early, 0)}"
    waited = [ended(rank, 1, "Traceback", error) for rank in (2, 0)]
    line = "rank 1 on a exited with code 0 before hvd.init(), and"
    assert blame([early, *waited]) == f"{line} ranks 0, 2 waited for it in init"
    assert blame([early, waited[0]]) == f"{line} rank 2 waited for it in init"


def test_blame_nobody() -> None:
    assert blame([ended(1, 0), ended(0, 1, "ValueError")]) == ""
    assert blame([ended(0, 0), ended(1, 0)]) == ""
