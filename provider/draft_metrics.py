"""The part of GET /metrics that is about drafting. A worker that is replaced begins its counters anew."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from provider.mtp.controller import DepthState
from provider.pipe import DraftState
from provider.slot import ModelSlot

Family = CounterMetricFamily | GaugeMetricFamily


def draft_metrics(slots: Sequence[ModelSlot]) -> Iterator[Metric]:
    active = GaugeMetricFamily("darkbloom_mtp_active", "1 while the model drafts with its head", labels=["model"])
    for slot in slots:
        active.add_metric([slot.id], float(slot.loaded is not None and slot.loaded.drafts.active))
    yield active
    found = [(slot.id, slot.engine.drafts) for slot in slots if slot.engine.drafts is not None]
    yield from _counters(found)
    yield from _controller(found)


def _counters(found: Sequence[tuple[str, DraftState]]) -> Iterator[Metric]:
    rounds = CounterMetricFamily("darkbloom_mtp_rounds", "Rows verified with drafts", labels=["model"])
    drafted = CounterMetricFamily("darkbloom_mtp_drafted_tokens", "Drafts, by place", labels=["model", "depth"])
    accepted = CounterMetricFamily("darkbloom_mtp_accepted_tokens", "Right drafts, by place", labels=["model", "depth"])
    seconds = CounterMetricFamily(
        "darkbloom_mtp_seconds", "What drafting steps take, by part", labels=["model", "part"]
    )
    parked = CounterMetricFamily("darkbloom_mtp_parked_seconds", "Decoding while drafting is parked", labels=["model"])
    for model, state in found:
        rounds.add_metric([model], state.rounds)
        _by_depth(drafted, model, enumerate(state.drafted, start=1))
        _by_depth(accepted, model, enumerate(state.accepted, start=1))
        seconds.add_metric([model, "draft"], state.draft_s)
        seconds.add_metric([model, "verify"], state.verify_s)
        seconds.add_metric([model, "bookkeeping"], state.bookkeeping_s)
        parked.add_metric([model], state.parked_s)
    yield from (rounds, drafted, accepted, seconds, parked)


def _controller(found: Sequence[tuple[str, DraftState]]) -> Iterator[Metric]:
    rates = GaugeMetricFamily(
        "darkbloom_mtp_depth_tokens_per_second", "Measured at the present batch width", labels=["model", "depth"]
    )
    states = GaugeMetricFamily("darkbloom_mtp_controller", "1 for the state it is in", labels=["model", "state"])
    for model, drafts in found:
        _by_depth(rates, model, sorted(drafts.depth_tps.items()))
        for state in DepthState:
            states.add_metric([model, state.value], float(state.value == drafts.controller))
    yield from (rates, states)


def _by_depth(family: Family, model: str, values: Iterable[tuple[int, float]]) -> None:
    for depth, value in values:
        family.add_metric([model, str(depth)], value)
