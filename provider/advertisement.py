"""What a provider tells of its models beside their memory."""

from collections.abc import Iterable

from provider.catalog import Model
from provider.config import ProviderConfig
from provider.mtp.policy import Reason
from provider.protocol import ModelAd, MtpStatus, Stats
from provider.slot import ModelSlot


def model_ad(model: Model, config: ProviderConfig) -> ModelAd:
    facts = model.checkpoint
    return ModelAd(
        id=model.id,
        model_type=facts.family,
        quantization=facts.quantization,
        size_bytes=facts.size_bytes,
        context_length=model.slot.n_ctx,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        state_bytes=facts.state_bytes,
        vision=False,  # a checkpoint may have a vision tower; its text part alone is served
        exact="off" if config.engine.exact == "off" else "unavailable",
        mtp=mtp_status(model.slot),
        weight_digest=model.digest if model.verified else None,
    )


def mtp_status(slot: ModelSlot) -> MtpStatus:
    """Whether a model drafts, and why not: as its worker found when it loaded it, before that as its files say."""
    if slot.loaded is None and slot.planned is not None:
        return MtpStatus(active=slot.planned.drafts, reason=slot.planned.drafts_not)
    if slot.loaded is None:
        return MtpStatus(active=False, reason=Reason.ENGINE_INACTIVE.value)
    return MtpStatus(active=slot.loaded.drafts.active, reason=slot.loaded.drafts.reason)


def exactness(config: ProviderConfig) -> tuple[str, str | None]:
    if config.engine.exact == "off":
        return "off", "exact concurrency is switched off"
    return "unavailable", "exact concurrency is not part of this release"


def stats_of(slots: Iterable[ModelSlot]) -> Stats:
    totals = [one.totals for one in slots]
    return Stats(
        requests=sum(one.requests for one in totals),
        tokens=sum(one.tokens for one in totals),
        parks=sum(one.parks for one in totals),
        recomputes=sum(one.recomputes for one in totals),
    )
