"""A checkpoint that can be served: everything the engine, the ledger and the wire need to know of it."""

from dataclasses import dataclass
from pathlib import Path

from provider.errors import ModelError, ModelUnsupported
from provider.models.architecture import Architecture
from provider.models.dtypes import ITEMSIZE
from provider.models.inspection import inspect_model
from provider.models.weight_files import weight_digest
from provider.mtp.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Bytes and tokens are integers; `dtype` is float32, bfloat16 or float16."""

    directory: Path
    family: str
    architecture: Architecture
    dtype: str
    quantization: str | None
    size_bytes: int
    eos_token_ids: frozenset[int]
    vision: bool
    mtp: Probe
    """Whether it declares a head: asked once, for whoever decides about drafting."""

    @property
    def context_length(self) -> int:
        return self.architecture.context_length

    @property
    def vocab_size(self) -> int:
        return self.architecture.vocab_size

    @property
    def kv_bytes_per_token(self) -> int:
        return self.architecture.kv_bytes_per_token(ITEMSIZE[self.dtype])

    @property
    def state_bytes(self) -> int:
        """Of one sequence, however long."""
        return self.architecture.state_bytes(ITEMSIZE[self.dtype])

    def digest(self) -> str:
        """weight_files.weight_digest: reads every byte of the weights."""
        return weight_digest(self.directory)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Raises ModelError for broken files, ModelUnsupported for a healthy checkpoint that is not served."""
    found = inspect_model(directory)
    if found.problems:
        raise ModelError(found.problems[0])
    if found.unsupported is not None:
        raise ModelUnsupported(f"{directory}: {found.unsupported}")
    assert found.architecture is not None
    assert found.dtype is not None
    assert found.size_bytes is not None
    return Checkpoint(
        directory=directory,
        family=found.family,
        architecture=found.architecture,
        dtype=found.dtype,
        quantization=found.quantization,
        size_bytes=found.size_bytes,
        eos_token_ids=found.eos_token_ids,
        vision=found.vision,
        mtp=found.mtp,
    )
