"""What a provider tells of its models beside their memory."""

from collections.abc import Iterable
from typing import Literal

from provider.catalog import Model
from provider.exact.policy import Mode as ExactMode
from provider.mtp.policy import Reason
from provider.pipe import ExactReport
from provider.protocol import ModelAd, MtpStatus, Stats
from provider.slot import ModelSlot


def model_ad(model: Model, wanted: ExactMode) -> ModelAd:
    """`wanted`: the mode of its next load."""
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
        exact=_promise(model, wanted),
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


def exact_report(model: Model) -> ExactReport:
    """Whether a model is exact now, as its worker found when it loaded it."""
    if model.slot.loaded is not None:
        return model.slot.loaded.exact
    if model.exact_refusal is not None:
        refusal = model.exact_refusal
        return ExactReport(
            state="unavailable", reason=str(refusal), code=refusal.cause or refusal.code, remedy=refusal.remedy
        )
    return ExactReport(reason="it is not loaded")


def _promise(model: Model, wanted: ExactMode) -> Literal["on", "off", "unavailable"]:
    """Whether a chat that is sent here will be exact. One that has not been loaded yet is so under `on`: it is refused
    else."""
    report = exact_report(model)
    untried = model.slot.loaded is None and model.exact_refusal is None
    return "on" if untried and wanted == "on" else report.state


def stats_of(slots: Iterable[ModelSlot]) -> Stats:
    totals = [one.totals for one in slots]
    return Stats(
        requests=sum(one.requests for one in totals),
        tokens=sum(one.tokens for one in totals),
        parks=sum(one.parks for one in totals),
        recomputes=sum(one.recomputes for one in totals),
    )
