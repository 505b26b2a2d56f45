"""The page "What limits my step" calculates as the engine and benchmarks/simulate.py do."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import hooks
import models
import simulate

from horovod import _native

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

MIB = 1 << 20
SIZES = (4, 4096, 65536, MIB, MIB + 4, 7 * MIB, 64 * MIB)
# Ranks and ranks of each host.
SHAPES = ((2, 2), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3), (16, 4), (24, 4), (64, 8), (100, 8))
LINKS = (1.25e7, 1.25e9, 1.25e10)
ALGORITHMS = ("exchange", "direct", "ring", "doubling", "trees", "hierarchical")
FUSION_BYTES = 64 * MIB


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page with the module of the site as `cost`."""
    page = browser.new_page()
    module = base64.b64encode(hooks.module_of_calculator().encode()).decode()
    page.evaluate(
        f"import('data:text/javascript;base64,{module}').then(m => {{ window.cost = m }})"
    )
    yield page
    page.close()


def costs_of(link: float) -> Any:
    return _native.CostConstants(network_bytes_per_s=link)


def test_allreduces_take_as_long_as_in_the_engine(page: Page) -> None:
    cases = [(*shape, size, link) for shape in SHAPES for size in SIZES for link in LINKS]
    calculated = page.evaluate(
        """cases => cases.map(([ranks, perHost, bytes, linkRate]) => {
          const costs = {...cost.COSTS, linkRate}, hosts = cost.ranksOfHosts(ranks, perHost);
          const each = cost.ALGORITHMS.map(
            name => [name, cost.estimateAllreduce(name, hosts, bytes, 32768, costs)]);
          const chosen = cost.chooseAllreduce(hosts, bytes, costs);
          return {each: Object.fromEntries(each), chosen};
        })""",
        cases,
    )
    for (ranks, per_host, size, link), found in zip(cases, calculated, strict=True):
        hosts = [rank // per_host for rank in range(ranks)]
        for name in ALGORITHMS:
            _, seconds = _native.estimate_allreduce(
                hosts, size, algorithm=name, costs=costs_of(link)
            )
            assert found["each"][name] == pytest.approx(seconds, rel=1e-12)
        name, seconds = _native.estimate_allreduce(hosts, size, costs=costs_of(link))
        assert found["chosen"]["algorithm"] == name
        assert found["chosen"]["seconds"] == pytest.approx(seconds, rel=1e-12)


def test_steps_take_as_long_as_in_the_simulation(page: Page) -> None:
    for name, model in models.models().items():
        for ranks, per_host, gbit in ((1, 1, 25), (8, 4, 25), (12, 8, 1), (64, 4, 100)):
            cluster = simulate.Cluster(ranks, per_host, gbit * 1e9 / 8, 4e-5, 8e10, 1e-6, "auto")
            step = simulate.simulate(model, cluster, FUSION_BYTES)
            found = page.evaluate(
                """([model, ranks, ranksPerHost, linkRate]) => {
                  const costs = {...cost.COSTS, linkRate, memoryRate: 8e10};
                  const cluster = {ranks, ranksPerHost, negotiation: 1e-6, costs};
                  return cost.simulate(model, cluster, 64 * 1024 * 1024);
                }""",
                [hooks.data_of_model(name), ranks, per_host, cluster.bytes_per_s],
            )
            assert found["step"] == pytest.approx(step.step_s, rel=1e-9)
            assert len(found["batches"]) == step.batches


@pytest.fixture(scope="module")
def limits(browser: Browser, site: Path) -> Iterator[Page]:
    """The page of the site, read without a server."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "limits.html").as_uri())
    yield page
    assert not errors
    page.close()


def set_slider(page: Page, name: str, value: int) -> str:
    """Move a slider by keys, and return the sentence of the page."""
    slider = page.locator(f"#limits-{name}")
    slider.focus()
    page.keyboard.press("Home")
    for _ in range(value - int(slider.get_attribute("min") or 0)):
        page.keyboard.press("ArrowRight")
    assert slider.input_value() == str(value)
    return page.inner_text("#limits-verdict")


def test_the_page_names_the_limit(limits: Page) -> None:
    assert "The device limits this step" in set_slider(limits, "link", 12)
    assert "The link between hosts limits this step" in set_slider(limits, "link", 0)
    assert "no communication at all" in limits.inner_text("#limits-changes")


def test_each_slider_says_its_value(limits: Page) -> None:
    names = json.loads(
        limits.evaluate("JSON.stringify([...limits.querySelectorAll('input')].map(i => i.id))")
    )
    assert len(names) == 5
    for name in names:
        assert limits.locator(f"label[for={name}]").count() == 1
        assert limits.get_attribute(f"#{name}", "aria-valuetext")
