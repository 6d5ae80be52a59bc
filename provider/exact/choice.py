"""How many rows a model's lanes have, by what a pass takes on this device."""

from collections.abc import Mapping

MIX = (1, 4, 8)
"""Streams at a time: alone, a few, many. Each chat of the mix counts alike, so what is kept small is the mean time
between two tokens of a chat."""
TIE = 1.02
"""Costs this close are one to a measurement; the smaller lane is then the better one for a chat alone."""


def cost_s(seconds: Mapping[int, float], rows: int) -> float:
    """The time between two tokens of a chat, summed over all chats of the mix; `seconds`: of a pass, by its rows."""
    return sum(streams * -(-streams // rows) * seconds[rows] for streams in MIX)


def cheapest(seconds: Mapping[int, float]) -> int:
    costs = {rows: cost_s(seconds, rows) for rows in seconds}
    least = min(costs.values())
    return min(rows for rows, cost in costs.items() if cost <= TIE * least)
