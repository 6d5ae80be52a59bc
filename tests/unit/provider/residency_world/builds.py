"""Models without files: what a checkpoint would have said."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.catalog import Found
from provider.memory.caps import GIB
from provider.models.architecture import Architecture, LayerKind
from provider.models.checkpoint import Checkpoint
from provider.mtp.policy import Declaration
from provider.mtp.probe import Probe
from tests.unit.provider.residency_world.gates import Gates

KIB = 2**10
SHELF = Path("/models")


@dataclass(frozen=True, kw_only=True)
class Build:
    """`loaded_bytes`: what its weights occupy; None: as much as the files. `kv_kib`: per token, a multiple of 4."""

    name: str
    size_bytes: int
    loaded_bytes: int | None = None
    kv_kib: int = 48
    context: int = 65536
    baseline_bytes: int = 0
    digest: str = "5a" * 32

    @property
    def weight_bytes(self) -> int:
        return self.size_bytes if self.loaded_bytes is None else self.loaded_bytes

    @property
    def checkpoint(self) -> Checkpoint:
        architecture = Architecture(
            vocab_size=64,
            hidden_size=64,
            context_length=self.context,
            layer_kinds=(LayerKind.FULL,),
            attention_heads=1,
            kv_heads=self.kv_kib // 4,
            head_dim=KIB,
            tie_word_embeddings=True,
        )
        return Checkpoint(
            directory=SHELF / self.name,
            family="llama",
            architecture=architecture,
            dtype="bfloat16",
            quantization=None,
            size_bytes=self.size_bytes,
            eos_token_ids=frozenset(),
            vision=False,
            mtp=Probe(Declaration.ABSENT, "llama", "no head"),
        )


def build(name: str, size_gib: float, **more: Any) -> Build:
    return Build(name=name, size_bytes=int(size_gib * GIB), **more)


class Wordless:
    """A tokenizer for tests in which nothing is said."""

    eos_token_ids = frozenset[int]()
    special_tokens = frozenset[str]()
    chat_template: str | None = None
    template_tokens: dict[str, str] = {}  # noqa: RUF012

    def encode(self, text: str, special: bool = True) -> list[int]:
        return [1] * max(1, len(text))

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "." * len(ids)


class ScriptedFiles:
    """Implements provider.catalog.Files."""

    def __init__(self, builds: list[Build], gates: Gates) -> None:
        self.builds = {one.name: one for one in builds}
        self._gates = gates

    def find(self, path_or_id: str) -> Found:
        one = self.builds[path_or_id]
        return Found(one.name, one.checkpoint, Wordless())

    async def fetch(self, path_or_id: str) -> Found:
        await self._gates.wait(f"fetch:{path_or_id}")
        return self.find(path_or_id)

    async def digest(self, checkpoint: Checkpoint) -> str:
        told = await self._gates.wait(f"digest:{checkpoint.directory.name}")
        return self.builds[checkpoint.directory.name].digest if told is None else str(told)
