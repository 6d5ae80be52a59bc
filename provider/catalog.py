"""The models a provider knows: what their files say, what a load of each is charged with, and the slot that runs it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from provider.config import ProviderConfig
from provider.errors import ExactUnavailable
from provider.generation import TextTokenizer
from provider.memory.caps import minimum_serviceable_kv
from provider.memory.grants import Member
from provider.memory.requirement import Charge, sequence_bytes
from provider.models.checkpoint import Checkpoint, read_checkpoint
from provider.models.resolve import resolve_model
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.head import ExternalHead
from provider.mtp.policy import Off, Reason
from provider.mtp.probe import Probe
from provider.mtp.verdict import Verdict, judge
from provider.pipe import DraftSpec, LoadSpec
from provider.runner import Runner
from provider.slot import ModelSlot, Planned, SlotLimits
from provider.standing import SlotStatus
from provider.system_memory import MemoryKind

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
    exact_refusal: ExactUnavailable | None = None
    """Why its last load was refused, or the next one will be, where that is so until somebody changes the mode."""

    @property
    def id(self) -> str:
        return self.slot.id

    @property
    def status(self) -> SlotStatus:
        """As its slot's; `failed` too where nothing but an operator can have it loaded."""
        return "failed" if self._refused else self.slot.status

    @property
    def reason(self) -> str | None:
        """Why it is not ready."""
        return str(self.exact_refusal) if self._refused else self.slot.reason

    @property
    def _refused(self) -> bool:
        return self.exact_refusal is not None and self.slot.status == "unloaded"


@dataclass(frozen=True, slots=True)
class Found:
    """What a name has led to. `id`: what to serve it as unless something else is said."""

    id: str
    checkpoint: Checkpoint
    tokenizer: TextTokenizer


class Files(Protocol):
    """Where models come from."""

    def find(self, path_or_id: str) -> Found:
        """Blocks: it may be downloaded first. Raises ModelError."""
        ...

    async def fetch(self, path_or_id: str) -> Found:
        """As find, while others go on."""
        ...

    async def digest(self, checkpoint: Checkpoint) -> str:
        """Of its weights: every byte of them is read. Raises ModelError."""
        ...


class LocalFiles:
    """Directories of this machine, and the hub's cache."""

    def find(self, path_or_id: str) -> Found:
        resolved = resolve_model(path_or_id)
        checkpoint = read_checkpoint(resolved.directory)
        return Found(resolved.id, checkpoint, ModelTokenizer(checkpoint.directory))

    async def fetch(self, path_or_id: str) -> Found:
        return await asyncio.to_thread(self.find, path_or_id)

    async def digest(self, checkpoint: Checkpoint) -> str:
        return await asyncio.to_thread(checkpoint.digest)


def draft_spec(config: ProviderConfig, probed: Probe) -> DraftSpec:
    """What whoever loads a model is told of drafting."""
    drafter = config.mtp_drafter_path
    return DraftSpec(
        mode=config.engine.mtp_mode,
        killed=config.mtp_killed,
        declaration=probed.declaration.value,
        model_type=probed.model_type,
        drafter_path=None if drafter is None else str(drafter),
    )


class Watcher(Protocol):
    """Who is told of a model's worker. Implemented by residency."""

    def worker_given_up(self, model_id: str, self_test: bool) -> None: ...

    def worker_replaced(self, model_id: str) -> None:
        """Another one serves now, and may have been measured otherwise."""
        ...


class Factory:
    """Makes a Model of files, by this provider's configuration."""

    def __init__(
        self,
        config: ProviderConfig,
        files: Files,
        create_runner: Callable[[], Runner],
        watcher: Watcher,
        clock: Callable[[], float],
        memory_kind: MemoryKind = "host",
    ) -> None:
        self.files = files
        self._memory_kind: MemoryKind = memory_kind
        self._config = config
        self._create_runner = create_runner
        self._watcher = watcher
        self._clock = clock

    def create(self, path_or_id: str) -> Model:
        """Blocks. Raises ModelError."""
        return self._model(self.files.find(path_or_id), path_or_id)

    async def fetch(self, path_or_id: str, id: str, digest: str | None = None) -> Model:
        """To be served as `id`, once its weights have been found to hash to `digest`. Raises ModelError."""
        return self._model(await self.files.fetch(path_or_id), path_or_id, id, digest)

    async def digest_of(self, model: Model) -> str:
        return await self.files.digest(model.checkpoint)

    def _model(self, found: Found, path_or_id: str, id: str | None = None, digest: str | None = None) -> Model:
        checkpoint, named = found.checkpoint, id or found.id
        verdict = self._verdict(checkpoint)
        head = verdict.choice
        return Model(
            checkpoint=checkpoint,
            slot=self._slot(named, found, verdict),
            # A head that is inside the model's files is part of its size.
            charge=Charge(checkpoint.size_bytes, head.payload_bytes if isinstance(head, ExternalHead) else 0),
            member=self._member(checkpoint),
            pinned=bool({named, path_or_id} & set(self._config.pinned)),
            digest=digest,
        )

    def _verdict(self, checkpoint: Checkpoint) -> Verdict:
        """Whether it will draft, as far as its files say."""
        config = self._config
        if config.backend == "sim":
            return Verdict(checkpoint.mtp.declaration, Off(Reason.ENGINE_INACTIVE, "a simulation has no head"))
        return judge(
            checkpoint.directory, checkpoint.mtp, killed=config.mtp_killed, mode=config.engine.mtp_mode,
            drafter_path=config.mtp_drafter_path,
        )  # fmt: skip

    def _member(self, checkpoint: Checkpoint) -> Member:
        context = self._context_tokens(checkpoint)
        full = sequence_bytes(context, checkpoint.state_bytes, checkpoint.kv_bytes_per_token)
        minimum = minimum_serviceable_kv(full, self._config.engine.max_concurrent)
        return Member(checkpoint.kv_bytes_per_token, context, minimum)

    def _context_tokens(self, checkpoint: Checkpoint) -> int:
        engine = self._config.engine
        context = engine.context_length or checkpoint.context_length
        return context if engine.kv_pool_tokens is None else min(context, engine.kv_pool_tokens)

    def _slot(self, id: str, found: Found, verdict: Verdict) -> ModelSlot:
        engine, checkpoint = self._config.engine, found.checkpoint
        told = engine.context_length
        if told is not None and told > checkpoint.context_length:
            log.warning("context_beyond_training model=%s context=%d trained=%d", id, told, checkpoint.context_length)
        spec = LoadSpec(
            backend=self._config.backend,
            directory=str(checkpoint.directory),
            max_concurrent=engine.max_concurrent,
            context_length=told,
            kv_pool_tokens=engine.kv_pool_tokens,
            park=self._config.park_spec(self._memory_kind),
            lanes_directory=str(self._config.lanes_directory),
            drafts=draft_spec(self._config, checkpoint.mtp),
        )
        return ModelSlot(
            id,
            found.tokenizer,
            spec,
            SlotLimits(engine.max_concurrent, self._config.max_waiting),
            self._create_runner,
            clock=self._clock,
            planned=Planned(
                self._context_tokens(checkpoint),
                checkpoint.vocab_size,
                verdict.active,
                None if verdict.reason is None else verdict.reason.value,
            ),
            on_failed=lambda self_test: self._watcher.worker_given_up(id, self_test),
            on_replaced=lambda: self._watcher.worker_replaced(id),
        )
