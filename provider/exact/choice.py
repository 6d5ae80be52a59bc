"""How many rows a model's lanes have, by what a pass takes on this device."""

from collections.abc import Mapping
from typing import Literal

from provider.exact.packing import PaddedLanes

MIX = (1, 4, 8)
"""Streams at a time: alone, a few, many. Each chat of the mix counts alike, so what is kept small is the mean time
between two tokens of a chat."""
TIE = 1.02
"""Costs this close are one to a measurement; the smaller lane is then the better one for a chat alone."""

Source = Literal["kept", "measured"]
"""Where a choice comes from: from an earlier load, or from this one."""


def cost_s(seconds: Mapping[int, float], rows: int, drafts: int = 0) -> float:
    """The time between two tokens of a chat, summed over all chats of the mix; `seconds`: of a pass, by its rows. Of a
    model that drafts, the mix is there once without drafts and once with all of them, every one of which is right."""
    widths = {1, 1 + min(drafts, rows - 1)}
    return seconds[rows] * sum(streams * _passes_per_token(streams, width, rows) for width in widths for streams in MIX)


def cheapest(seconds: Mapping[int, float], drafts: int = 0) -> int:
    costs = {rows: cost_s(seconds, rows, drafts) for rows in seconds}
    least = min(costs.values())
    return min(rows for rows, cost in costs.items() if cost <= TIE * least)


def _passes_per_token(streams: int, width: int, rows: int) -> float:
    """Of each of so many chats with `width` positions in a step, packed as a step is."""
    packing = PaddedLanes(rows)
    fitted = packing.fit([width] * streams)
    return len(packing.pack(fitted)) * streams / sum(fitted)
