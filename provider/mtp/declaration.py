"""What config.json says of a head:

    "mtplx_mtp": {"included": true, "prefix": "mtp.", "block_size": 3},
    "mtplx_mtp_quantization": {}

and `mtp_num_hidden_layers` among the target's dimensions. `block_size` counts one target token and the drafts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.models.families import text_config
from provider.mtp.faults import Fault
from provider.mtp.packing import HeadQuantization, read_quantization

DEFAULT_PREFIX, DEFAULT_BLOCK_SIZE = "mtp.", 3
PREFIX = re.compile(r"[0-9A-Za-z._]{1,128}")
BLOCK_SIZES = range(2, 9)


@dataclass(frozen=True, slots=True)
class HeadDeclaration:
    prefix: str
    block_size: int
    quantization: HeadQuantization


def read_declaration(config: Mapping[str, Any], path: Path) -> HeadDeclaration:
    """`config`: of the file `path`. Raises Fault."""
    declared = config.get("mtplx_mtp")
    if not isinstance(declared, dict) or declared.get("included") is not True:
        raise Fault('mtplx_mtp must be an object with "included": true', path)
    _check_one_layer(text_config(config), path)
    return HeadDeclaration(
        prefix=_prefix(declared, path),
        block_size=read_block_size(declared, path),
        quantization=read_quantization(config.get("mtplx_mtp_quantization"), path),
    )


def declared_drafts(config: Mapping[str, Any]) -> int:
    """The most in a round; 0 where no head is declared, or not soundly."""
    try:
        return read_declaration(config, Path("config.json")).block_size - 1
    except Fault:
        return 0


def head_prefix(config: Mapping[str, Any]) -> str | None:
    """Under which name the tensors of a declared head lie, also where the declaration is not sound; None without."""
    declared = config.get("mtplx_mtp")
    if not isinstance(declared, dict) or declared.get("included") is not True:
        return None
    prefix = declared.get("prefix", DEFAULT_PREFIX)
    return prefix if isinstance(prefix, str) and PREFIX.fullmatch(prefix) else DEFAULT_PREFIX


def read_block_size(declared: Mapping[str, Any], path: Path) -> int:
    size = declared.get("block_size", DEFAULT_BLOCK_SIZE)
    if not isinstance(size, int) or isinstance(size, bool) or size not in BLOCK_SIZES:
        raise Fault(f"block_size must be an integer from 2 to 8, not {size!r}", path)
    return size


def _check_one_layer(text: Mapping[str, Any], path: Path) -> None:
    """With more of them it is not agreed whether each draft runs all or one."""
    layers = text.get("mtp_num_hidden_layers")
    if not isinstance(layers, int) or isinstance(layers, bool) or layers != 1:
        raise Fault(f"mtp_num_hidden_layers must be 1, not {layers!r}", path)
    if text.get("mtp_use_dedicated_embeddings"):
        raise Fault("mtp_use_dedicated_embeddings: only heads that share the target's embedding are served", path)


def _prefix(declared: Mapping[str, Any], path: Path) -> str:
    prefix = declared.get("prefix", DEFAULT_PREFIX)
    if not isinstance(prefix, str) or not PREFIX.fullmatch(prefix):
        raise Fault(f"prefix must be 1 to 128 of the characters 0-9 A-Z a-z . _, not {prefix!r:.150}", path)
    return prefix
