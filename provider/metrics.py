"""GET /metrics of a provider: read from the slots at each scrape, so nothing is counted twice."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from provider.draft_metrics import draft_metrics
from provider.park_metrics import park_metrics
from provider.residency import Residency
from provider.slot import ModelSlot

GAUGES = {
    "requests_running": ("Sequences decoding or in prefill", lambda slot: slot.engine.running + slot.engine.prefill),
    "requests_waiting": ("Requests waiting for room", lambda slot: slot.waiting),
    "requests_preempted": (
        "Sequences parked now, or being moved",
        lambda slot: slot.engine.parked + slot.engine.moving,
    ),
    "kv_tokens_used": ("Token positions held by resident sequences", lambda slot: slot.engine.tokens_used),
    "memory_active_bytes": ("Bytes the worker's arrays hold", lambda slot: slot.engine.active_bytes),
    "memory_cache_bytes": ("Bytes the worker's allocator keeps for reuse", lambda slot: slot.engine.cache_bytes),
    "memory_peak_bytes": ("Largest number of active bytes so far", lambda slot: slot.engine.peak_bytes),
    "decode_tokens_per_second": ("Smoothed over decode steps", lambda slot: slot.rates.decode_tps or 0.0),
    "prefill_tokens_per_second": ("Smoothed over prefill steps", lambda slot: slot.rates.prefill_tps or 0.0),
    "worker_up": ("1 while the worker is ready", lambda slot: float(slot.status == "ready")),
    "worker_given_up": (
        "1 while nobody may try another worker, the last ones having died",
        lambda slot: float(slot.status == "failed"),
    ),
    "worker_retry_seconds": ("Until another worker may be tried", lambda slot: slot.standing.retry_in_s or 0.0),
}
COUNTERS = {
    "requests": ("Requests taken in", lambda slot: slot.totals.requests),
    "requests_failed": ("Requests that ended in an error", lambda slot: slot.totals.failures),
    "prompt_tokens": ("Prompt tokens of finished requests", lambda slot: slot.totals.prompt_tokens),
    "generation_tokens": ("Tokens generated", lambda slot: slot.totals.tokens),
    "preempt": ("Parks", lambda slot: slot.totals.parks),
    "preempt_recompute": ("Parks that were recomputed", lambda slot: slot.totals.recomputes),
    "worker_restarts": ("Workers replaced after dying or hanging", lambda slot: slot.totals.restarts),
    "worker_failures": ("Times it was given up, its workers having died", lambda slot: slot.standing.failures),
}


class SlotCollector(Collector):
    def __init__(self, residency: Residency) -> None:
        self._residency = residency

    def collect(self) -> Iterable[Metric]:
        slots = self._residency.slots
        for name, (text, read) in GAUGES.items():
            gauge = GaugeMetricFamily(f"darkbloom_{name}", text, labels=["model"])
            yield from _filled(gauge, slots, read)
        for name, (text, read) in COUNTERS.items():
            counter = CounterMetricFamily(f"darkbloom_{name}", text, labels=["model"])
            yield from _filled(counter, slots, read)
        yield from draft_metrics(slots)
        yield from park_metrics(slots)


def exposition(residency: Residency) -> bytes:
    """In Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SlotCollector(residency))
    return generate_latest(registry)


def _filled(
    family: "GaugeMetricFamily | CounterMetricFamily", slots: list[ModelSlot], read: object
) -> Iterator[Metric]:
    assert callable(read)
    for slot in slots:
        family.add_metric([slot.id], float(read(slot)))
    yield family
