"""One picture of a run: when each request waited and was answered, and how its delays are spread."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provider.bench.report import Answer
from provider.errors import ConfigError

INSTALL = "a plot needs matplotlib: pip install 'darkbloom-py[bench]', or leave out --plot."


def load_pyplot() -> Any:
    """matplotlib's pyplot (untyped here, as it is optional), drawing to files only. Raises ConfigError without it."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError(INSTALL) from error


def write_plot(pyplot: Any, answers: Sequence[Answer], title: str, file: Path) -> None:
    figure, (timeline, first, gaps) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    figure.suptitle(title)
    _draw_timeline(timeline, answers)
    _draw_spread(first, [one.ttft_s for one in answers], "time to first token (ms)")
    _draw_spread(gaps, [gap for one in answers for gap in one.gaps_s], "between two tokens (ms)")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _draw_timeline(axes: Any, answers: Sequence[Answer]) -> None:
    started = min((one.sent_s for one in answers), default=0.0)
    numbers = [one.number for one in answers]
    waited = [one.ttft_s for one in answers]
    axes.barh(numbers, waited, left=[one.sent_s - started for one in answers], color="tab:orange", label="to first")
    axes.barh(
        numbers,
        [one.latency_s - one.ttft_s for one in answers],
        left=[one.sent_s - started + one.ttft_s for one in answers],
        color="tab:blue",
        label="to last",
    )
    axes.set(xlabel="seconds", ylabel="request")
    axes.invert_yaxis()
    if answers:
        axes.legend()


def _draw_spread(axes: Any, seconds: Sequence[float], what: str) -> None:
    """The share of values that are at most this large."""
    ordered = sorted(1000 * value for value in seconds)
    axes.step(ordered, [(place + 1) / len(ordered) for place in range(len(ordered))], where="post")
    axes.set(xlabel=what, ylabel="share", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
