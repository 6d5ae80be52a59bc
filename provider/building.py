"""An engine, made of what a worker is told to load."""

import logging
import os
import sys
import time
from pathlib import Path

from provider.backends.base import Backend, BackendFacts
from provider.backends.sim import BLOCK_TOKENS, SimBackend
from provider.backends.sim_timing import Clock, Device, WallClock, device_named_in
from provider.engine import Engine
from provider.errors import ConfigError, ModelError
from provider.exactness import attach_exact
from provider.grammar.compiler import Guides
from provider.heads import Head, attach_head, choose_head, inactive, still_active
from provider.models.checkpoint import Checkpoint, read_checkpoint
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.controller import DepthController
from provider.mtp.policy import Off, Reason
from provider.parking.files import ParkFiles, sweep
from provider.parking.lot import Lot
from provider.parking.mover import ThreadMover
from provider.pipe import DraftStatus, Loaded, LoadSpec
from provider.scheduler.pool import Pool
from provider.scheduler.prefilling import SHARED, SOLO
from provider.scheduler.scheduler import Limits, Scheduler
from provider.telling import loaded_of
from provider.text import Decode

log = logging.getLogger(__name__)


def build(spec: LoadSpec, clock: Clock | None = None) -> tuple[Engine, Loaded]:
    """Loads the model and puts an engine around it. Raises ModelError for what cannot be served.

    `clock`: what a simulated device spends its time on; the wall's by default.
    """
    started = time.monotonic()
    directory = Path(spec.directory)
    tokenizer = ModelTokenizer(directory)
    head = choose_head(directory, spec.drafts)
    backend, drafts = _create_backend(spec, clock or WallClock(), head, tokenizer)
    lanes_in = None if spec.lanes_directory is None else Path(spec.lanes_directory)
    exact = attach_exact(backend, directory, spec.exact, lanes_in)
    engine = engine_around(spec, backend, tokenizer.decode, clock)
    return engine, loaded_of(engine, still_active(backend, drafts), exact, time.monotonic() - started)


def engine_around(spec: LoadSpec, backend: Backend, decode: Decode, clock: Clock | None = None) -> Engine:
    """Raises ModelError where the memory left for keys and values is too little."""
    facts = backend.facts
    pool = Pool(
        tokens=_pool_tokens(spec, facts.kv_bytes_per_token),
        bytes=spec.kv_pool_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        state_bytes=facts.state_bytes,
        block_tokens=facts.block_tokens,
        tokens_follow_bytes=spec.kv_pool_tokens is None,
        padding_states=facts.padding_states,
    )
    prefilling = SHARED if facts.lane_rows is None else SOLO
    limits = Limits(spec.max_concurrent, spec.context_length or facts.context_length, prefilling=prefilling)
    scheduler = Scheduler(limits, pool, None if spec.park is None else spec.park.knobs.rules)
    if scheduler.n_ctx < 2:
        raise ModelError(
            f"{spec.directory}: the memory left for keys and values ({spec.kv_pool_bytes} bytes) does not hold one "
            "short sequence: free memory, or serve a smaller model."
        )
    limit(backend, spec.kv_pool_bytes, spec.activation_reserve_bytes)
    depth = DepthController(facts.max_drafts) if facts.max_drafts else None
    now = WallClock().now if clock is None else clock.now
    return Engine(scheduler, backend, decode, depth, now)


def limit(backend: Backend, kv_pool_bytes: int | None, activation_reserve_bytes: int | None) -> None:
    if kv_pool_bytes is not None and activation_reserve_bytes is not None:
        # What the next pass can take is kept ready, within what passes were measured to take: freed keys and values
        # would else stay here, and beside the process itself they are more than the cap allows.
        backend.limit(
            backend.facts.weight_bytes + kv_pool_bytes + activation_reserve_bytes, activation_reserve_bytes // 2
        )


def _pool_tokens(spec: LoadSpec, kv_bytes_per_token: int) -> int:
    if spec.kv_pool_tokens is not None:
        return spec.kv_pool_tokens
    if spec.kv_pool_bytes is None or kv_bytes_per_token == 0:
        return sys.maxsize
    return spec.kv_pool_bytes // kv_bytes_per_token


def _create_backend(
    spec: LoadSpec, clock: Clock, head: Head | Off, tokenizer: ModelTokenizer
) -> tuple[Backend, DraftStatus]:
    directory = Path(spec.directory)
    tiers = None if spec.park is None else spec.park.tiers()
    match spec.backend:
        case "mlx":
            from provider.backends.mlx.backend import MlxBackend
            from provider.backends.mlx.park_codec import MlxCodec

            guides = Guides(tokenizer, read_checkpoint(directory).vocab_size)
            guided = guides.begin()
            backend = MlxBackend(directory)
            backend.guide_with(guides.guide)
            guided.join()
            files = None if spec.park is None else _park_files(Path(spec.park.directory))
            if tiers is not None and files is not None:
                backend.park_with(Lot(tiers, files, MlxCodec(), ThreadMover()))
            return backend, attach_head(backend, head, tokenizer.encode)
        case "sim":
            device = device_named_in(os.environ)
            reason = (
                head if isinstance(head, Off) else Off(Reason.ENGINE_INACTIVE, "the simulated backend drafts nothing")
            )
            facts = sim_facts(read_checkpoint(directory), device)
            simulated = SimBackend(facts, device, clock, tiers=tiers)
            simulated.guide_with(Guides(tokenizer, facts.vocab_size).guide)
            return simulated, inactive(reason)
        case _:
            raise ConfigError(f"backend {spec.backend!r} is not known; known: mlx, sim")


def _park_files(directory: Path) -> ParkFiles | None:
    """What processes that have ended left there is removed. None where nothing can be written."""
    try:
        sweep(directory)
        return ParkFiles(directory)
    except OSError as error:
        log.warning("park_directory_unusable path=%s reason=%s", directory, error)
        return None


def sim_facts(checkpoint: Checkpoint, device: Device | None) -> BackendFacts:
    return BackendFacts(
        device="sim" if device is None else f"sim:{device.name}",
        vocab_size=checkpoint.vocab_size,
        context_length=checkpoint.context_length,
        weight_bytes=checkpoint.size_bytes,
        kv_bytes_per_token=checkpoint.kv_bytes_per_token,
        state_bytes=checkpoint.state_bytes,
        block_tokens=BLOCK_TOKENS,
    )
