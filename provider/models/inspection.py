"""What can be said of a model directory, also of one that is broken or foreign: nothing is loaded.

`inspect_model` answers for anything that has a readable config.json; `checkpoint.read_checkpoint` is the
strict form for whoever is about to serve it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.errors import ModelError, ModelUnsupported
from provider.models.architecture import Architecture
from provider.models.dtypes import ITEMSIZE, activation_dtype
from provider.models.eos import eos_token_ids
from provider.models.families import FAMILIES, read_architecture, text_config
from provider.models.json_file import read_json_object
from provider.models.quantization import foreign_quantization, quantization_summary
from provider.models.weight_files import Weights, read_weights
from provider.mtp.declaration import head_prefix
from provider.mtp.policy import family
from provider.mtp.probe import Probe, probe_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """`problems` are faults of the files; `unsupported` is why it is not served even with healthy files.

    `architecture` is None for a foreign family, `weights` when a weight file is missing or broken.
    """

    directory: Path
    config: Mapping[str, Any]
    architecture: Architecture | None
    weights: Weights | None
    eos_token_ids: frozenset[int]
    unsupported: str | None
    problems: tuple[str, ...]

    @property
    def family(self) -> str:
        return model_family(self.config)

    @property
    def context_length(self) -> int | None:
        if self.architecture is not None:
            return self.architecture.context_length
        return _positive(text_config(self.config).get("max_position_embeddings"))

    @property
    def vocab_size(self) -> int | None:
        return _positive(text_config(self.config).get("vocab_size"))

    @property
    def dtype(self) -> str | None:
        """Of activations and KV: the embedding's, or that of its scales where it is quantised."""
        return None if self.weights is None else activation_dtype(self.weights.tensors)

    @property
    def size_bytes(self) -> int | None:
        return None if self.weights is None else self.weights.size_bytes

    @property
    def quantization(self) -> str | None:
        return quantization_summary(self.config)

    @property
    def kv_bytes_per_token(self) -> int | None:
        if self.architecture is None or self.dtype is None:
            return None
        return self.architecture.kv_bytes_per_token(ITEMSIZE[self.dtype])

    @property
    def state_bytes(self) -> int | None:
        if self.architecture is None or self.dtype is None:
            return None
        return self.architecture.state_bytes(ITEMSIZE[self.dtype])

    @property
    def vision(self) -> bool:
        """A tower is declared, and not known to have been stripped from the weights."""
        declared = isinstance(self.config.get("vision_config"), dict)
        return declared and (self.weights is None or any(map(_is_vision, self.weights.tensors)))

    @property
    def mtp(self) -> Probe:
        """Of the config as it was read; the decision about drafting starts from it."""
        return probe_config(self.config)


def inspect_model(directory: Path) -> Inspection:
    """Raises ModelError only when config.json itself is missing or cannot be read."""
    config = read_json_object(directory / "config.json")
    problems: list[str] = []
    weights = _weights(directory, head_prefix(config), problems)
    eos = _eos(directory, problems)
    architecture, unsupported = _architecture(directory, config, problems)
    return Inspection(
        directory=directory,
        config=config,
        architecture=architecture,
        weights=weights,
        eos_token_ids=eos,
        unsupported=unsupported or _unserved(config, weights),
        problems=tuple(problems),
    )


def model_family(config: Mapping[str, Any]) -> str:
    """`model_type`, trimmed, lower-cased and without `_text` (docs/mtp.md); empty when there is none."""
    declared = config.get("model_type")
    return family(declared) if isinstance(declared, str) else ""


def _weights(directory: Path, head_prefix: str | None, problems: list[str]) -> Weights | None:
    """What is wrong with an embedded head is no problem of the model's: its own inspection says it."""
    try:
        return read_weights(directory, head_prefix)
    except ModelError as error:
        problems.append(str(error))
        return None


def _eos(directory: Path, problems: list[str]) -> frozenset[int]:
    try:
        return eos_token_ids(directory)
    except ModelError as error:
        problems.append(str(error))
        return frozenset()


def _architecture(
    directory: Path, config: Mapping[str, Any], problems: list[str]
) -> tuple[Architecture | None, str | None]:
    """The dimensions, or None and why the config is not served; what is wrong with it is a problem of the files."""
    family = config.get("model_type")  # mlx-lm takes the name as it is written
    if not isinstance(family, str) or family not in FAMILIES:
        served = ", ".join(sorted(FAMILIES))
        return None, f"model_type {family!r} is not served; this release serves {served}."
    try:
        return read_architecture(family, config), None
    except ModelUnsupported as error:
        return None, str(error)
    except ModelError as error:
        problems.append(f"{directory}: {error}")
        return None, None


def _unserved(config: Mapping[str, Any], weights: Weights | None) -> str | None:
    method = foreign_quantization(config)
    if method is not None:
        return f"Quantised with {method}: convert it with mlx_lm.convert, or serve an MLX conversion of it."
    if weights is not None and activation_dtype(weights.tensors) is None:
        return "The dtype of its embedding is none of float32, bfloat16 and float16."
    return None


def _is_vision(tensor: str) -> bool:
    return tensor.startswith(("vision_tower", "visual.", "model.visual"))


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
