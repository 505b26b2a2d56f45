"""Pins of requirements are compared with the newest versions."""

from __future__ import annotations

from matrix_newest import Pin, all_pins, lines_of, pins_of

TEXT = """
# A comment.
-r build.txt
Py_Yaml==6.0.3  # why
numpy==1.0; python_version < "3"
ray[train]==2.60.0
pandas<3
"""


def test_pins_of_a_file_are_found() -> None:
    assert pins_of("a.txt", TEXT) == [
        Pin("py-yaml", "6.0.3", "a.txt"),
        Pin("ray", "2.60.0", "a.txt"),
    ]


def test_old_versions_are_left_alone() -> None:
    files = {pin.file for pin in all_pins()}
    assert {"build.txt", "dev.txt", "jax.txt"} <= files
    assert not [file for file in files if "oldest" in file or "mxnet" in file]


def test_what_is_newer_is_told() -> None:
    pins = [Pin("a", "1.0", "a.txt"), Pin("b", "1.0", "a.txt"), Pin("c", "1.0", "b.txt")]
    told = lines_of(pins, {"a": "1.0", "b": "1.1"})
    assert told == ["b: 1.0 in requirements/a.txt, newest 1.1"]
