"""The modules of the page alone: strokes, fills, runs, undo and styles, in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

    Compute = Callable[[str], Any]


@pytest.fixture(scope="module")
def compute(browser: Browser, static: str) -> Iterator[Compute]:
    """Return what a body of JavaScript returns that uses the names of the modules."""
    page = browser.new_page()
    page.goto(f"{static}icon.svg")

    def run(body: str) -> Any:
        return page.evaluate(
            f"""async () => {{
              const {{ EMPTY, Grid, perspective }} = await import("{static}grid.js");
              const {{ History }} = await import("{static}history.js");
              const {{ styleAt, randomStyle }} = await import("{static}styles.js");
              const rows = (grid) => Array.from({{ length: grid.height }}, (_, y) =>
                Array.from(grid.cells.slice(y * grid.width, (y + 1) * grid.width),
                  (id) => id === EMPTY ? "." : id).join(""));
              {body}
            }}"""
        )

    yield run
    page.close()


def test_a_stamp_of_one_cell(compute: Compute) -> None:
    assert compute("const g = new Grid(3, 2); g.stamp(1.9, 0.2, 1, 4); return rows(g)") == [
        ".4.",
        "...",
    ]


def test_a_stamp_is_a_disc_of_its_diameter_and_is_cut_off_at_the_edge(compute: Compute) -> None:
    assert compute("const g = new Grid(5, 5); g.stamp(2, 2, 4, 1); return rows(g)") == [
        ".11..",
        "1111.",
        "1111.",
        ".11..",
        ".....",
    ]
    assert compute("const g = new Grid(3, 3); g.stamp(0, 0, 4, 1); return rows(g)") == [
        "11.",
        "1..",
        "...",
    ]


def test_a_quick_stroke_has_no_gaps(compute: Compute) -> None:
    rows = compute(
        "const g = new Grid(9, 9);"
        "g.stroke({x: 0.5, y: 0.5}, {x: 8.5, y: 8.5}, () => 1, 2); return rows(g)"
    )
    assert [row.index("2") for row in rows] == list(range(9))


def test_fill_stays_within_edges_and_does_not_pass_corners(compute: Compute) -> None:
    cells = "0,0,1, 0,1,0, 1,0,0"
    assert compute(
        f"const g = new Grid(3, 3, Uint8Array.of({cells}));"
        "return [g.fill(0, 0, 5), rows(g), g.fill(0, 0, 5), g.fill(9, 9, 5)]"
    ) == [3, ["551", "510", "100"], 0, 0]


def test_empty_cells_become_the_nearest_class(compute: Compute) -> None:
    assert compute(
        "const g = new Grid(6, 1); g.stamp(0.5, 0.5, 1, 3); g.stamp(5.5, 0.5, 1, 7);"
        "return [rows(g.complete(0)), rows(g), rows(new Grid(2, 1).complete(4))]"
    ) == [["333777"], ["3....7"], ["44"]]


def test_runs_return_the_map(compute: Compute) -> None:
    assert compute(
        "const g = new Grid(4, 2, Uint8Array.of(1,1,1,2, 2,2,0,0));"
        "return [g.runs(), rows(Grid.fromRuns(4, 2, g.runs()))]"
    ) == [[1, 3, 2, 3, 0, 2], ["1112", "2200"]]


def test_maps_of_a_wrong_size_are_refused(compute: Compute) -> None:
    with pytest.raises(Exception, match="needs 4 ids, got 3"):
        compute("return new Grid(2, 2, new Uint8Array(3))")


def test_lines_are_as_wide_as_asked_for_at_the_bottom_and_one_cell_at_the_horizon(
    compute: Compute,
) -> None:
    assert compute(
        "const width = perspective(9, 32, 64); return [width(10), width(32), width(48), width(64)]"
    ) == [1, 1, 5, 9]


def test_the_horizon_is_where_the_sky_ends(compute: Compute) -> None:
    assert compute(
        "const g = new Grid(2, 6, Uint8Array.of(0,0, 0,0, 1,0, 1,0, 1,1, 1,1));"
        "return [g.horizon(0), g.horizon(8)]"
    ) == [3, 2]


def test_undo_and_redo_walk_and_a_new_change_ends_the_future(compute: Compute) -> None:
    assert compute(
        """
        const history = new History(); const of = (id) => Uint8Array.of(id);
        history.keep(of(0)); history.keep(of(1));
        const walk = [history.undo(of(2))[0], history.undo(of(1))[0], history.undo(of(0))];
        walk.push(history.redo(of(0))[0], history.canRedo);
        history.keep(of(1)); walk.push(history.canRedo, history.redo(of(5)));
        return walk.map((each) => each ?? null)
        """
    ) == [1, 0, None, 1, True, False, None]


def test_styles_between_hours_are_interpolated(compute: Compute) -> None:
    assert compute(
        """
        const styles = { "a-dawn": [0, 4], "a-noon": [1, 0] };
        return [0, 0.25, 1].map((time) => styleAt(styles, ["dawn", "noon"], "a", time))
        """
    ) == [[0, 4], [0.25, 3], [1, 0]]


def test_random_styles_are_normal(compute: Compute) -> None:
    mean, spread = compute(
        """
        const all = randomStyle(20000); const mean = all.reduce((a, b) => a + b) / all.length;
        return [mean, Math.sqrt(all.reduce((a, b) => a + (b - mean) ** 2, 0) / all.length)]
        """
    )
    assert abs(mean) < 0.05
    assert abs(spread - 1) < 0.05
