"""What clients send: bounded before it is read, checked before it is used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from fastapi import Request

MOST_BYTES_OF_JSON = 1 << 20
READ_WITHIN_S = 30.0


class RefusedError(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


Number = Annotated[float, Field(ge=-100, le=100)]


class Style(BaseModel):
    """A style by its name, its numbers, or a seed that numbers are drawn with: exactly one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    name: Annotated[str, Field(max_length=64)] | None = None
    vector: Annotated[list[Number], Field(max_length=4096)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class Synthesize(BaseModel):
    """A label map as runs, and a style."""

    model_config = ConfigDict(extra="forbid", strict=True)
    width: Annotated[int, Field(ge=1, le=4096)]
    height: Annotated[int, Field(ge=1, le=4096)]
    runs: Annotated[list[int], Field(min_length=2)]
    style: Style


async def read_body(request: Request, media_types: tuple[str, ...], most_bytes: int) -> bytes:
    """Return the body of a request.

    Raise RefusedError for other media types, and as soon as the body is too large or too slow.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in media_types:
        raise RefusedError(
            415, f"Send {' or '.join(media_types)}, not {media_type or 'an unknown type'}."
        )
    try:
        return await asyncio.wait_for(_read_at_most(request, most_bytes), READ_WITHIN_S)
    except asyncio.TimeoutError:
        raise RefusedError(
            408, f"The request did not arrive within {READ_WITHIN_S:.0f} s."
        ) from None


async def _read_at_most(request: Request, most_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise RefusedError(413, f"The request has more than {most_bytes:,} bytes.")
    return bytes(body)


def parse_synthesize(body: bytes) -> Synthesize:
    """Return the request in a JSON body. Raise RefusedError that names the field that is wrong."""
    try:
        return Synthesize.model_validate_json(body)
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RefusedError(
            422, f"The request is wrong at {place or 'its start'}: {first['msg']}."
        ) from error
