"""What parking has moved, for GET /metrics."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from provider.pipe import CopyState
from provider.slot import ModelSlot

LABELS = ["model", "direction"]


def park_metrics(slots: Iterable[ModelSlot]) -> Iterator[Metric]:
    """Since each model's worker was started; `direction` is park or restore."""
    seconds = CounterMetricFamily("darkbloom_preempt_seconds", "Time that copies of parked chats took", labels=LABELS)
    moved = CounterMetricFamily("darkbloom_preempt_bytes", "Bytes of parked chats that were copied", labels=LABELS)
    copies = CounterMetricFamily("darkbloom_preempt_copies", "Copies of parked chats", labels=LABELS)
    failed = CounterMetricFamily("darkbloom_preempt_copies_failed", "... that came to nothing", labels=LABELS)
    for slot in slots:
        for direction, state in _directions(slot):
            seconds.add_metric([slot.id, direction], state.seconds)
            moved.add_metric([slot.id, direction], state.size_bytes)
            copies.add_metric([slot.id, direction], state.count)
            failed.add_metric([slot.id, direction], state.failed)
    yield from (seconds, moved, copies, failed)


def _directions(slot: ModelSlot) -> list[tuple[str, CopyState]]:
    return [("park", slot.engine.saves), ("restore", slot.engine.restores)]
