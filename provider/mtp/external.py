"""The inspection of a head in a directory of its own (`mtp_drafter_path`, under mtp_mode on).

*.safetensors files with the tensors of a head, under `mtp.` or bare, norms stored as they are applied; and, where it is
packed or has a block size of its own, a config.json with `block_size` and MLX's `quantization`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from provider.errors import HeadInvalid, ModelError
from provider.models.json_file import read_json_object
from provider.models.weight_files import read_weights
from provider.mtp.checks import check_names, check_tensors, head_tensor, stores_fused_experts
from provider.mtp.declaration import read_block_size
from provider.mtp.faults import Fault, Mismatch
from provider.mtp.files import parse_object, read_shard, read_small
from provider.mtp.head import ExternalHead, HeadTensor
from provider.mtp.packing import read_quantization
from provider.mtp.policy import Reason
from provider.mtp.target import Target, read_target

NAMESPACES = ("language_model.mtp.", "model.mtp.", "mtp.")
MAX_FILES = 64


def inspect_external_head(directory: Path, target_directory: Path) -> ExternalHead:
    """Raises HeadInvalid: assistant_target_incompatible for a head of another target, else local_artifact_invalid."""
    try:
        return _inspect(directory, _target(target_directory))
    except Mismatch as fault:
        raise HeadInvalid(Reason.ASSISTANT_TARGET_INCOMPATIBLE, fault.detail, fault.path) from fault
    except Fault as fault:
        raise HeadInvalid(Reason.LOCAL_ARTIFACT_INVALID, fault.detail, fault.path) from fault


def _inspect(directory: Path, target: Target) -> ExternalHead:
    raw_config = _optional(directory / "config.json")
    config = parse_object(raw_config, directory / "config.json") if raw_config else {}
    prefix, tensors = _tensors(directory)
    return ExternalHead(
        directory=directory,
        prefix=prefix,
        block_size=read_block_size(_own(config), directory / "config.json"),
        dtype=target.dtype,
        dimensions=target.dimensions,
        fused_experts=stores_fused_experts(tensors),
        tensors=tensors,
        packings=check_tensors(
            tensors, target, read_quantization(_quantization(config), directory / "config.json"), directory
        ),
        shift_norms=False,
        config_digest=hashlib.sha256(raw_config).hexdigest() if raw_config else "",
        index_digest="",
    )


def _target(directory: Path) -> Target:
    """As the trunk's, but for the norms: an external head is in MLX's layout whatever its target's."""
    try:
        config, trunk = read_json_object(directory / "config.json"), read_weights(directory).tensors
    except ModelError as error:
        raise Fault(f"the target cannot be read: {error}", directory) from error
    return replace(read_target(config, trunk, directory / "config.json"), raw_norms=False)


def _tensors(directory: Path) -> tuple[str, dict[str, HeadTensor]]:
    """The prefix that all of them share, and each without it."""
    found = {path: read_shard(path) for path in _files(directory)}
    names = [name for tensors in found.values() for name in tensors]
    check_names(names, directory)
    prefix = next((one for one in NAMESPACES if all(name.startswith(one) for name in names)), "")
    if len(set(names)) < len(names):
        raise Fault("holds a tensor in two files", directory)
    return prefix, {
        name.removeprefix(prefix): head_tensor(name, info, path)
        for path, tensors in found.items()
        for name, info in tensors.items()
    }


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise Fault("is not a directory", directory)
    found = sorted(directory.glob("*.safetensors"))
    if not 0 < len(found) <= MAX_FILES:
        raise Fault(f"has {len(found)} *.safetensors files: 1 to {MAX_FILES} are accepted", directory)
    return found


def _optional(path: Path) -> bytes | None:
    return read_small(path) if path.exists() else None


def _own(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a block size may stand: as an embedded head declares it, or at the root."""
    declared = config.get("mtplx_mtp")
    return declared if isinstance(declared, dict) else config


def _quantization(config: Mapping[str, Any]) -> Any:
    return config.get("mtplx_mtp_quantization", config.get("quantization", {}))
