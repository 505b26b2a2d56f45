"""``_native.pyi`` is what nanobind says of the native module."""

from __future__ import annotations

from pathlib import Path

from nanobind.stubgen import StubGen

from horovod import _native

STUB = Path(__file__).resolve().parents[2] / "src/horovod/_native.pyi"


def test_the_stub_is_up_to_date() -> None:
    generator = StubGen(_native, include_docstrings=False)
    generator.put(_native)
    assert STUB.read_text() == generator.get(), "run make docs"
