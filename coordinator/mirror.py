"""A provider's memory as seen from here: what it reports, else what its release, the tables and its hardware say.

Pure, in integer bytes and tokens. The arithmetic is provider.memory's own; here is only what a coordinator may
conclude from it. What is unknown is said to be unknown, and a guess errs on the large side: a provider's refusal costs
another try, while one from here would be the client's last word.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from coordinator.cooldown import Capacity, outdated
from coordinator.fleet import ProviderView
from coordinator.store.records import MemoryTables
from provider.memory.caps import CAP_FRACTION, GIB, MINIMUM_KV_BYTES, effective_cap, minimum_serviceable_kv
from provider.memory.floors import serving_set
from provider.memory.regimes import release_of, reserve_of_release
from provider.memory.requirement import Charge, padded_weights, required_for_load, sequence_bytes
from provider.protocol import Measured, ModelAd, Slot

OPERATOR_RESERVE_BYTES = 4 * GIB
"""A provider's memory_reserve_gb where its operator has set none."""
CONCURRENT = 8
"""A provider's max_concurrent where it has not said."""
LOADED = frozenset({"idle", "running"})


@dataclass(frozen=True, slots=True)
class Reserve:
    """The activation reserve of a provider: its own figure, or the one that its release would resolve."""

    activation_reserve_bytes: int
    reported: bool


class ColdLoad(StrEnum):
    """Whether a provider could load a model that it has not loaded."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """The provider's own check decides."""


class TooLong(StrEnum):
    """Why a prompt can never be served, however long it waits."""

    CONTEXT_EXCEEDED = "context_exceeded"
    PROMPT_TOO_LONG = "prompt_too_long"
    """It fits the context and not the room for keys and values."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A model on an idle machine: what loading it would require, and what there is."""

    required_bytes: int
    effective_cap_bytes: int

    @property
    def fits(self) -> bool:
        return self.required_bytes <= self.effective_cap_bytes


def reserve(view: ProviderView, tables: MemoryTables, asked: Iterable[str] = ()) -> Reserve:
    """For what the provider serves, and `asked` beside it."""
    told = None if view.memory is None else _bytes(view.memory.activation_reserve_bytes)
    served = serving_set(view.models, view.slots, ())
    asked = frozenset(asked)
    if told is None:
        charged = serving_set(view.models, view.slots, (), asked)
        return Reserve(_reserve_of_release(view, charged, tables), reported=False)
    if asked <= served:
        return Reserve(told, reported=True)
    return Reserve(max(told, _reserve_of_release(view, asked, tables)), reported=True)


def plan(view: ProviderView, ad: ModelAd, tables: MemoryTables, known: Reserve | None = None) -> Plan:
    """Of loading that model, which the provider need not advertise yet. `known`: `reserve` of one that does, for
    whoever asks about all of its models."""
    full_context = sequence_bytes(ad.context_length, ad.state_bytes, ad.kv_bytes_per_token)
    slot = view.slots.get(ad.id)
    concurrent = CONCURRENT if slot is None else slot.max_concurrency or CONCURRENT
    minimum = minimum_serviceable_kv(full_context, concurrent) if ad.kv_bytes_per_token else GIB
    needed = (known or reserve(view, tables, [ad.id])).activation_reserve_bytes
    told = None if view.memory is None else _bytes(view.memory.effective_cap_bytes)
    cap = effective_cap(view.hardware.memory_bytes, OPERATOR_RESERVE_BYTES) if told is None else told
    return Plan(required_for_load(Charge(ad.size_bytes), needed, minimum), cap)


def cold_load(view: ProviderView, ad: ModelAd) -> ColdLoad:
    return cold_admission(ad.size_bytes, None if view.memory is None else view.memory.free_for_load_bytes)


def cold_admission(size_bytes: int, free_for_load_bytes: Measured) -> ColdLoad:
    """Padded, whatever the release and the model: staging takes more than the weights occupy afterwards.
    `free_for_load_bytes` is for weights alone, after all headroom."""
    match free_for_load_bytes:
        case None:
            return ColdLoad.UNKNOWN
        case int():
            if size_bytes <= 0:
                return ColdLoad.UNKNOWN
            return ColdLoad.ADMITTED if padded_weights(size_bytes) <= free_for_load_bytes else ColdLoad.REFUSED
        case _:
            return ColdLoad.REFUSED


def post_load_tokens(cap_bytes: int, weight_bytes: int, floor_bytes: int, kv_bytes_per_token: int) -> int:
    """The room for keys and values after a load, in tokens. On the large side: nothing is left to the operator."""
    return max(0, cap_bytes - weight_bytes - floor_bytes) // kv_bytes_per_token


def token_budget(view: ProviderView, ad: ModelAd, tables: MemoryTables, known: Reserve | None = None) -> int | None:
    """Positions that all sequences of a model may have together: as its slot reports, or as they would be after a
    load. 0 is a known zero; None is unknown. `known`: `reserve` of the provider."""
    slot = view.slots.get(ad.id)
    if slot is not None and slot.tokens_max:
        return slot.tokens_max
    if slot is not None and (loaded(slot) or slot.state == "failed"):
        return 0 if known_zero(slot) else None
    return _estimated_budget(view, ad, tables, known)


def known_zero(slot: Slot | None) -> bool:
    """Loaded, with a rate and nothing to spend: it can serve nobody."""
    return slot is not None and loaded(slot) and slot.kv_bytes_per_token > 0 and slot.tokens_max == 0


def too_long(at_least_tokens: int, view: ProviderView, ad: ModelAd, tables: MemoryTables) -> TooLong | None:
    """For a prompt of at least so many tokens. A budget of nothing is no matter of the prompt."""
    if 0 < ad.context_length <= at_least_tokens:
        return TooLong.CONTEXT_EXCEEDED
    if not loaded(view.slots.get(ad.id)) and at_least_tokens <= least_room(ad):
        return None
    budget = token_budget(view, ad, tables)
    return TooLong.PROMPT_TOO_LONG if budget and budget < at_least_tokens else None


def longest_prompt(view: ProviderView, ad: ModelAd, tables: MemoryTables) -> int:
    """The bound that `too_long` holds a prompt against; 0 where it knows none."""
    budget = token_budget(view, ad, tables)
    if budget and not loaded(view.slots.get(ad.id)):
        budget = max(budget, least_room(ad))
    return min((bound for bound in (ad.context_length, budget) if bound), default=0)


def least_room(ad: ModelAd) -> int:
    """What a provider that has loaded the model leaves it at least, in tokens: with less it does not load."""
    return MINIMUM_KV_BYTES // ad.kv_bytes_per_token if ad.kv_bytes_per_token else 0


def loaded(slot: Slot | None) -> bool:
    return slot is not None and slot.state in LOADED


def capacity(view: ProviderView, model: str) -> Capacity:
    """As of the last heartbeat; one that differs makes a former refusal stale."""
    slot, ad = view.slots.get(model), view.models.get(model)
    return Capacity(
        loaded=loaded(slot),
        full=slot is not None and _full(slot),
        tokens_max=0 if slot is None else slot.tokens_max,
        max_concurrency=0 if slot is None else slot.max_concurrency,
        cold_load=ColdLoad.UNKNOWN if ad is None else cold_load(view, ad),
    )


def crowded(view: ProviderView, model: str) -> bool:
    """Whether a refusal of a request that is with the provider is no wonder: with it, there are too many."""
    slot = view.slots.get(model)
    if slot is None:
        return False
    held = sum(hold.model == model for hold in view.holds.values())
    return _full(slot) or 0 < slot.max_concurrency < slot.running + slot.waiting + held


def eased(view: ProviderView) -> ProviderView:
    """Without the cooldowns that the provider's capacity has outdated."""
    kept = {model: one for model, one in view.cooldowns.items() if not outdated(one, capacity(view, model))}
    return view if len(kept) == len(view.cooldowns) else replace(view, cooldowns=kept)


def _full(slot: Slot) -> bool:
    no_place = 0 < slot.max_concurrency <= slot.running + slot.waiting
    return no_place or 0 < slot.tokens_max <= slot.tokens_used + slot.tokens_queued


def estimable(view: ProviderView, ad: ModelAd) -> bool:
    """Whether its room after a load can be guessed at all."""
    return bool(view.hardware.memory_bytes and ad.size_bytes and ad.kv_bytes_per_token)


def cap_estimate(view: ProviderView) -> int:
    """What models may take of this machine, on the large side."""
    told = None if view.memory is None else _bytes(view.memory.effective_cap_bytes)
    return max(int(CAP_FRACTION * view.hardware.memory_bytes), told or 0)


def reserve_alone(view: ProviderView, ad: ModelAd, tables: MemoryTables) -> int:
    """The reserve of a provider of that release that serves this model and no other."""
    return _reserve_of_release(view, [ad.id], tables)


def _estimated_budget(view: ProviderView, ad: ModelAd, tables: MemoryTables, known: Reserve | None) -> int | None:
    if not estimable(view, ad):
        return None
    floor = min(reserve_alone(view, ad, tables), (known or reserve(view, tables)).activation_reserve_bytes)
    return post_load_tokens(
        cap_estimate(view), resident_weights(view.version, ad, tables), floor, ad.kv_bytes_per_token
    )


def _reserve_of_release(view: ProviderView, ids: Iterable[str], tables: MemoryTables) -> int:
    """A model that sees images has no measured floor: what its tower takes rides the reserve."""
    ids = tuple(ids)
    measured = {id: tables.floors[id] for id in ids if id in tables.floors and not _sees(view, id)}
    return reserve_of_release(view.version, ids, measured)


def _sees(view: ProviderView, model: str) -> bool:
    ad = view.models.get(model)
    return ad is not None and ad.vision


def resident_weights(version: str, ad: ModelAd, tables: MemoryTables) -> int:
    """As measured, where that is known of the provider's release; else as on disk, for only admission is padded."""
    measured = tables.residency.get(ad.id)
    release = release_of(version)
    since = None if measured is None else release_of(measured.since)
    if measured is None or release is None or since is None or release < since or ad.vision:
        return ad.size_bytes
    return measured.resident_bytes


def _bytes(told: Measured) -> int | None:
    return told if isinstance(told, int) else None
