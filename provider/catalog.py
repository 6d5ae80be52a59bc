"""The models a provider knows: what their files say, what a load of each is charged with, and the slot that runs it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from provider.config import ProviderConfig
from provider.memory.caps import minimum_serviceable_kv
from provider.memory.grants import Member
from provider.memory.requirement import Charge, sequence_bytes
from provider.models.checkpoint import Checkpoint, read_checkpoint
from provider.models.resolve import resolve_model
from provider.models.tokenizer import ModelTokenizer
from provider.pipe import DraftSpec, LoadSpec
from provider.runner import Runner
from provider.slot import ModelSlot, Planned, SlotLimits

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Model:
    """`digest`: what the weights must hash to before they are loaded; None where nobody has said. `verified`: they
    have been found to."""

    checkpoint: Checkpoint
    slot: ModelSlot
    charge: Charge
    member: Member
    pinned: bool = False
    digest: str | None = None
    verified: bool = False

    @property
    def id(self) -> str:
        return self.slot.id


class Factory:
    """Makes a Model of a name, by this provider's configuration. `on_failed(id, self_test)`: its worker is given up."""

    def __init__(
        self, config: ProviderConfig, create_runner: Callable[[], Runner], on_failed: Callable[[str, bool], None]
    ) -> None:
        self._config = config
        self._create_runner = create_runner
        self._on_failed = on_failed

    def create(self, path_or_id: str, id: str | None = None, digest: str | None = None) -> Model:
        """Reads its files, downloading them if need be; blocks. Raises ModelError. `id`: what to serve it as."""
        resolved = resolve_model(path_or_id)
        checkpoint = read_checkpoint(resolved.directory)
        named = id or resolved.id
        return Model(
            checkpoint=checkpoint,
            slot=self._slot(named, checkpoint),
            charge=Charge(checkpoint.size_bytes),
            member=self._member(checkpoint),
            pinned=bool({named, path_or_id} & set(self._config.pinned)),
            digest=digest,
        )

    def _member(self, checkpoint: Checkpoint) -> Member:
        context = self._context_tokens(checkpoint)
        full = sequence_bytes(context, checkpoint.state_bytes, checkpoint.kv_bytes_per_token)
        minimum = minimum_serviceable_kv(full, self._config.engine.max_concurrent)
        return Member(checkpoint.kv_bytes_per_token, context, minimum)

    def _context_tokens(self, checkpoint: Checkpoint) -> int:
        engine = self._config.engine
        context = engine.context_length or checkpoint.context_length
        return context if engine.kv_pool_tokens is None else min(context, engine.kv_pool_tokens)

    def _slot(self, id: str, checkpoint: Checkpoint) -> ModelSlot:
        engine = self._config.engine
        told, drafter = engine.context_length, self._config.mtp_drafter_path
        if told is not None and told > checkpoint.context_length:
            log.warning("context_beyond_training model=%s context=%d trained=%d", id, told, checkpoint.context_length)
        spec = LoadSpec(
            backend=self._config.backend,
            directory=str(checkpoint.directory),
            max_concurrent=engine.max_concurrent,
            context_length=told,
            kv_pool_tokens=engine.kv_pool_tokens,
            drafts=DraftSpec(
                mode=engine.mtp_mode,
                killed=self._config.mtp_killed,
                declaration=checkpoint.mtp.declaration.value,
                model_type=checkpoint.mtp.model_type,
                drafter_path=None if drafter is None else str(drafter),
            ),
        )
        return ModelSlot(
            id,
            ModelTokenizer(checkpoint.directory),
            spec,
            SlotLimits(engine.max_concurrent, self._config.max_waiting),
            self._create_runner,
            planned=Planned(self._context_tokens(checkpoint), checkpoint.vocab_size),
            on_failed=lambda self_test: self._on_failed(id, self_test),
        )
