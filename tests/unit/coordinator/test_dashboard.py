"""The Grafana dashboard that comes with the docs asks for metrics that there are, by labels that they have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provider.metrics import COUNTERS, GAUGES

BOARD = Path(__file__).parents[3] / "docs" / "grafana" / "darkbloom-fleet.json"
ROOT = Path(__file__).parents[3]
NAME = re.compile(r"darkbloom_[a-z_]+")
MADE = re.compile(r'(Counter|Gauge|Histogram)(?:MetricFamily)?\(\s*"(darkbloom_[a-z_]+)"')
SUFFIXES = {"Counter": "_total", "Gauge": "", "Histogram": "_bucket"}


def panels() -> list[dict[str, Any]]:
    return [one for one in json.loads(BOARD.read_text())["panels"] if one["type"] != "row"]


def exposed() -> set[str]:
    """The names of both registries as they are scraped; the provider makes some from the keys of two tables."""
    files = [*(ROOT / "coordinator").glob("*.py"), *(ROOT / "provider").glob("*metrics.py")]
    made = {(kind, name) for file in files for kind, name in MADE.findall(file.read_text())}
    made |= {("Gauge", f"darkbloom_{name}") for name in GAUGES} | {
        ("Counter", f"darkbloom_{name}") for name in COUNTERS
    }
    return {name + SUFFIXES[kind] for kind, name in made}


def asked() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            for name in NAME.findall(target["expr"]):
                yield panel["title"], name


@pytest.mark.parametrize(("title", "name"), sorted(set(asked())))
def test_every_metric_it_asks_for_is_there(title: str, name: str) -> None:
    assert name in exposed(), title


def test_no_two_panels_share_a_place_or_an_id() -> None:
    board = json.loads(BOARD.read_text())["panels"]
    assert len({one["id"] for one in board}) == len(board)
    cells = [
        (x, y)
        for at in (one["gridPos"] for one in board)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
