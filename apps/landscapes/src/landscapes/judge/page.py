"""The report as a page with pictures, in one file."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from landscapes.judge.evaluate import OTHER
from landscapes.palette import paint_labels

if TYPE_CHECKING:
    from landscapes.judge.evaluate import Subject

STYLE = """body{font:15px system-ui;margin:2em;max-width:70em}table{border-collapse:collapse}
td,th{border-bottom:1px solid #ccc;padding:.3em .7em;text-align:left;vertical-align:top}
img{image-rendering:pixelated;width:128px}.lost{color:#b00}"""
SHOWN = 12


def render_page(report: dict[str, Any], subject: Subject) -> str:
    """Return the page of a report as HTML that loads nothing."""
    rows = "".join(_row(each) for each in report["rows"])
    heading = html.escape(f"{report['preset']}, step {report['step']}, {report['pairs']} pairs")
    return (
        f"<!doctype html><meta charset=utf-8><title>Report</title><style>{STYLE}</style>"
        f"<h1>Report of a checkpoint</h1><p>{heading}. Rendered landscapes, not photographs.</p>"
        "<table><tr><th>Question<th>Measure<th>Value<th>Controls<th>Comparison"
        f"<th>Target</tr>{rows}</table><h2>Pictures</h2>"
        "<table><tr><th>Map<th>Style<th>Painted<th>Original<th>Flat painter<th>Untrained"
        f"</tr>{_pictures(subject)}</table>"
    )


def _row(row: dict[str, Any]) -> str:
    mark = "" if row["beats_controls"] else " class=lost"
    cells = [
        html.escape(row["question"]),
        html.escape(row["measure"]),
        f"<b>{row['value']}</b>",
        _list(row["controls"]),
        _list(row.get("for comparison", {})),
        html.escape(row.get("target", "")),
    ]
    return f"<tr{mark}><td>" + "<td>".join(cells) + "</tr>"


def _list(values: dict[str, Any]) -> str:
    return "<br>".join(f"{html.escape(name)}: {value}" for name, value in values.items())


def _pictures(subject: Subject) -> str:
    styles = np.roll(subject.images, -OTHER, 0)
    columns = (
        paint_labels(subject.labels[:SHOWN]),
        styles,
        subject.painted,
        subject.images,
        subject.flat,
        subject.untrained,
    )
    shown = min(SHOWN, len(subject.images))
    return "".join(
        "<tr>" + "".join(f"<td>{_image(each[number])}" for each in columns) + "</tr>"
        for number in range(shown)
    )


def _image(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'
