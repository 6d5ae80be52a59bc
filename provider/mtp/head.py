"""A head whose files have been inspected: everything a loader needs, so that it opens no config and no index again."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provider.models.dtypes import ITEMSIZE
from provider.mtp.packing import Packing
from provider.mtp.tensors import HeadDimensions


@dataclass(frozen=True, slots=True)
class HeadTensor:
    """Where a tensor lies. `name` is its own in the file `shard`, `offset` that of its first byte there."""

    name: str
    dtype: str
    """As safetensors names it: BF16, F32, U32 ..."""
    shape: tuple[int, ...]
    shard: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadArtifact:
    """`tensors` by name and `packings` by module path, both without the prefix (`layers.0.self_attn.q_proj`).

    `dtype` is the target's (float32, bfloat16 or float16). Packed weights come in it; plain ones may come in another
    floating-point type and are converted. `shift_norms`: add 1 to each of `provider.mtp.tensors.NORMS`, once.
    The digests are SHA-256, in hex, of config.json and of the index; empty where an external head has none.
    """

    directory: Path
    prefix: str
    block_size: int
    dtype: str
    dimensions: HeadDimensions
    fused_experts: bool
    tensors: Mapping[str, HeadTensor]
    packings: Mapping[str, Packing]
    shift_norms: bool
    config_digest: str
    index_digest: str

    @property
    def max_drafts(self) -> int:
        """In one round: a block is one target token and these."""
        return self.block_size - 1

    @property
    def payload_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the head's own attention layer."""
        return self.dimensions.kv_bytes_per_token(ITEMSIZE[self.dtype])

    @property
    def shards(self) -> tuple[Path, ...]:
        return tuple(sorted({tensor.shard for tensor in self.tensors.values()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineHead(HeadArtifact):
    """A head in its target's own directory."""

    @property
    def revision(self) -> str:
        return f"inline-{self.config_digest[:8]}-{self.index_digest[:8]}"

    @property
    def additional_bytes(self) -> int:
        """Beside the checkpoint's size, which counts the head already."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalHead(HeadArtifact):
    """A head in a directory of its own."""

    @property
    def additional_bytes(self) -> int:
        """As weights are charged: six fifths, rounded up."""
        return -(-self.payload_bytes * 6 // 5)
