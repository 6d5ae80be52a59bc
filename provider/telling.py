"""What a worker tells its parent of its engine."""

import psutil

from provider.engine import Engine
from provider.mtp.controller import DepthController
from provider.parking.mover import Lane
from provider.pipe import CopyState, DraftState, DraftStatus, EngineState, ExactReport, Loaded

SWITCHED_OFF = "off"
"""In the place of the controller's state, where it has nothing to decide any more."""


def loaded_of(
    engine: Engine, drafts: DraftStatus, exact: ExactReport, load_s: float, baseline_bytes: int | None = None
) -> Loaded:
    """What a parent is told of an engine that has just been made. `baseline_bytes` None: what this process takes."""
    facts, memory = engine.backend.facts, engine.backend.memory()
    if baseline_bytes is None:
        baseline_bytes = _baseline_bytes(memory.active_bytes + memory.cache_bytes)
    return Loaded(
        n_ctx=engine.scheduler.n_ctx,
        pool_tokens=engine.scheduler.pool.tokens,
        vocab_size=facts.vocab_size,
        weight_bytes=facts.weight_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        state_bytes=facts.state_bytes,
        device=facts.device,
        load_s=load_s,
        active_bytes=memory.active_bytes,
        baseline_bytes=baseline_bytes,
        drafts=drafts,
        exact=exact,
    )


def engine_state(engine: Engine) -> EngineState:
    counts, memory = engine.scheduler.counts(), engine.backend.memory()
    return EngineState(
        running=counts.running,
        prefill=counts.prefill,
        waiting=counts.waiting,
        parked=counts.parked,
        moving=counts.moving,
        tokens_used=counts.tokens_used,
        tokens_queued=counts.tokens_queued,
        parks=engine.scheduler.parks,
        recomputes=engine.scheduler.recomputes,
        active_bytes=memory.active_bytes,
        cache_bytes=memory.cache_bytes,
        peak_bytes=memory.peak_bytes,
        saves=_copies(engine, Lane.SAVE),
        restores=_copies(engine, Lane.RESTORE),
        drafts=_draft_state(engine),
        draft_failure=engine.backend.draft_failure,
    )


def _copies(engine: Engine, lane: Lane) -> CopyState:
    moved = engine.rates.moved[lane]
    return CopyState(count=moved.count, failed=moved.failed, size_bytes=moved.size_bytes, seconds=moved.seconds)


def _draft_state(engine: Engine) -> DraftState | None:
    depth, seconds = engine.depth, engine.backend.draft_seconds
    if not isinstance(depth, DepthController):
        return None
    return DraftState(
        rounds=engine.tally.rounds,
        drafted=engine.tally.drafted,
        accepted=engine.tally.accepted,
        draft_s=seconds.draft,
        verify_s=seconds.verify,
        bookkeeping_s=seconds.bookkeeping,
        parked_s=depth.parked_s,
        controller=depth.state.value if engine.backend.draft_failure is None else SWITCHED_OFF,
        depth_tps=depth.rates,
    )


def _baseline_bytes(arrays_bytes: int) -> int:
    return max(0, int(psutil.Process().memory_info().rss) - arrays_bytes)
