"""What /metrics shows. One registry of its own, so that several coordinators fit into one process."""

from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.placement import Placement

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """`providers` is asked at each scrape: how many there are in each state."""

    def __init__(self, providers: Callable[[], dict[str, int]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Providers(providers))
        self.requests = Counter("darkbloom_http_requests", "HTTP answers.", ["route", "status"], registry=self.registry)
        self.jobs = Counter("darkbloom_jobs", "Generation requests that ended.", ["outcome"], registry=self.registry)
        self.attempts = Counter(
            "darkbloom_attempts", "Requests sent to a provider.", ["outcome"], registry=self.registry
        )
        self.refusals = Counter(
            "darkbloom_route_refusals", "Requests nobody could take.", ["reason"], registry=self.registry
        )
        self.loads = Counter(
            "darkbloom_model_loads", "What providers have said of loads.", ["status"], registry=self.registry
        )
        self.load_failures = Counter(
            "darkbloom_model_load_failures", "Loads that failed.", ["reason"], registry=self.registry
        )
        self.prefetches = Counter(
            "darkbloom_model_prefetches", "What providers have said of prefetches.", ["status"], registry=self.registry
        )
        self.cooldowns = Counter(
            "darkbloom_capacity_cooldowns",
            "Times that a provider was left alone after it had kept refusing a model.",
            registry=self.registry,
        )
        self.waiting = Gauge(
            "darkbloom_requests_waiting", "Requests that wait for a place.", ["model"], registry=self.registry
        )
        self.waited = Histogram(
            "darkbloom_wait_seconds",
            "How long requests that had to wait for a place have waited, by what came of it.",
            ["outcome"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.retries = Counter(
            "darkbloom_retries", "Attempts that failed and were made again.", ["code"], registry=self.registry
        )
        self.breakers_opened = Counter(
            "darkbloom_breakers_opened",
            "Times that a provider was left alone after requests for a model had kept failing there.",
            registry=self.registry,
        )
        self.resumptions = Counter(
            "darkbloom_stream_resumptions",
            "Answers whose provider lost its connection, by what came of them: resumed, sent again, or lost.",
            ["outcome"],
            registry=self.registry,
        )
        self.turned_away = Counter(
            "darkbloom_providers_turned_away",
            "Dials of providers for which there was no place, and lists of models that were too long for it.",
            ["reason"],
            registry=self.registry,
        )
        self.running = Gauge("darkbloom_requests_running", "Generation requests in progress.", registry=self.registry)
        self.first_chunk = Histogram(
            "darkbloom_time_to_first_chunk_seconds",
            "From the request to the first chunk sent on.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.chunks = Counter("darkbloom_chunks_relayed", "Chunks sent on.", registry=self.registry)
        self._frames = Counter("darkbloom_provider_frames", "Frames from providers.", ["type"], registry=self.registry)
        self.frames = cache(self._frames.labels)
        """By type, of which there are few; each is looked up once, for there are thousands of frames a second."""
        self.records_waiting = Gauge(
            "darkbloom_records_waiting", "Rows of usage not yet in the store.", registry=self.registry
        )
        self.records_lost = Counter(
            "darkbloom_records_lost", "Rows given up and logged instead.", registry=self.registry
        )

        self.placing = Gauge(
            "darkbloom_placing", "1 where this coordinator is the one that places models.", registry=self.registry
        )
        self.placement_orders = Counter(
            "darkbloom_placement_orders", "Orders to keep models warm.", ["kind"], registry=self.registry
        )
        self.placement_missing = Gauge(
            "darkbloom_placement_missing",
            "Warm providers that a pool lacks.",
            ["model", "providers"],
            registry=self.registry,
        )

    def missing(self, placement: Placement) -> None:
        """Of the pools there are now, and of no others."""
        self.placement_missing.clear()
        for state in placement.pools:
            self.placement_missing.labels(state.model, state.pool.providers).set(state.missing)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Providers(Collector):
    def __init__(self, count: Callable[[], dict[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("darkbloom_providers", "Providers known.", labels=["state"])
        for state, number in self._count().items():
            family.add_metric([state], number)
        yield family
