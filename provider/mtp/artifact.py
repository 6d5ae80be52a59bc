"""The inspection of an embedded head: strict, from headers and a few bytes, before any of it is loaded.

    inspect_inline_head(directory) -> InlineHead         or HeadInvalid, with a reason, a sentence and a path
    reinspect(head)                -> InlineHead         the same once more, right before its weights are read

Whatever is wrong here turns drafting off and nothing else: the model is served without its head.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from provider.errors import HeadInvalid
from provider.models.safetensors_header import TensorInfo
from provider.models.weight_files import INDEX_NAME
from provider.mtp.checks import check_names, check_tensors, head_tensor, stores_fused_experts
from provider.mtp.declaration import read_declaration
from provider.mtp.faults import Fault
from provider.mtp.files import parse_object, read_shard, read_small, weight_map
from provider.mtp.head import InlineHead
from provider.mtp.policy import Reason
from provider.mtp.target import read_target

NAMESPACE = "mtp."
"""What mlx-lm takes for a head's, wherever in a name it stands."""

Shards = Mapping[str, Mapping[str, TensorInfo]]
"""By file name, what the file's header lists."""


def inspect_inline_head(directory: Path) -> InlineHead:
    """Reads the config, the index and every header of the checkpoint. Raises HeadInvalid, inline_artifact_invalid."""
    try:
        return _inspect(directory)
    except Fault as fault:
        raise HeadInvalid(Reason.INLINE_ARTIFACT_INVALID, fault.detail, fault.path) from fault


def reinspect(head: InlineHead) -> InlineHead:
    """Raises HeadInvalid when the files fail the inspection now, or anything in them is not as it was."""
    again = inspect_inline_head(head.directory)
    if again != head:
        raise HeadInvalid(Reason.INLINE_ARTIFACT_INVALID, "the head has changed since it was inspected", head.directory)
    return again


def _inspect(directory: Path) -> InlineHead:
    config_path, index_path = directory / "config.json", directory / INDEX_NAME
    raw_config = read_small(config_path)
    config = parse_object(raw_config, config_path)
    declared = read_declaration(config, config_path)
    raw_index = read_small(index_path)
    files = weight_map(parse_object(raw_index, index_path), index_path)
    listed = _listed(files, declared.prefix, index_path)
    shards = {name: read_shard(directory / name) for name in sorted(set(files.values()))}
    _check_shards(listed, files, shards, declared.prefix, directory)
    target = read_target(config, _trunk(shards, declared.prefix), config_path)
    tensors = {
        key: head_tensor(name, shards[files[name]][name], directory / files[name]) for key, name in listed.items()
    }
    return InlineHead(
        directory=directory,
        prefix=declared.prefix,
        block_size=declared.block_size,
        dtype=target.dtype,
        dimensions=target.dimensions,
        fused_experts=stores_fused_experts(tensors),
        tensors=tensors,
        packings=check_tensors(tensors, target, declared.quantization, index_path),
        shift_norms=target.raw_norms,
        config_digest=hashlib.sha256(raw_config).hexdigest(),
        index_digest=hashlib.sha256(raw_index).hexdigest(),
    )


def _listed(files: Mapping[str, str], prefix: str, index: Path) -> dict[str, str]:
    """Name without the prefix -> name, of every tensor of the head that the index lists."""
    listed = {name.removeprefix(prefix): name for name in files if name.startswith(prefix)}
    check_names(listed.values(), index)
    for name in files.keys() - listed.values():
        _, namespace, key = name.rpartition(NAMESPACE)
        if namespace and key in listed:
            raise Fault(f"lists {key} twice: as {listed[key]} and as {name}", index)
    return listed


def _check_shards(
    listed: Mapping[str, str], files: Mapping[str, str], shards: Shards, prefix: str, directory: Path
) -> None:
    """Index and files name the same tensors of the head, each in one file."""
    for name in listed.values():
        if name not in shards[files[name]]:
            raise Fault(f"lacks {name}, which the index lists", directory / files[name])
    for file, tensors in shards.items():
        for name in tensors:
            if name.startswith(prefix) and files.get(name) != file:
                raise Fault(f"holds {name:.80}, which the index does not list there", directory / file)


def _trunk(shards: Shards, prefix: str) -> dict[str, TensorInfo]:
    return {name: info for tensors in shards.values() for name, info in tensors.items() if not name.startswith(prefix)}
