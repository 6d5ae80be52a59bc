"""A head's modules with the weights of an inspected artifact in them, as mlx-lm builds the block it consists of."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3_5 import DecoderLayer

from provider.backends.mlx.cpu_layout import lay_out_for_cpu
from provider.mtp.head import HeadArtifact
from provider.mtp.norms import LEAST, MOST
from provider.mtp.tensors import FUSED_EXPERTS, NORMS

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class HeadModules(nn.Module):
    """x = fc(concat([norm(embedding), norm(hidden)])), one full-attention block of the target's kind, and a norm."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.fc = nn.Linear(2 * args.hidden_size, args.hidden_size, bias=False)
        self.layers = [DecoderLayer(args, args.full_attention_interval - 1)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    @property
    def block(self) -> Any:
        return self.layers[0]

    def mix(self, embeddings: mx.array, hidden: mx.array) -> mx.array:
        """[..., H], [..., H] -> [..., H]: the embedding of each token, and the hidden state it was drawn from."""
        both = [self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)]
        return self.fc(mx.concatenate(both, axis=-1))


def load_head(artifact: HeadArtifact, args: Any) -> HeadModules:
    """`args`: the target's, as mlx-lm has them. Raises ValueError for tensors that do not fill the modules exactly, or
    norms that cannot be meant as they would be applied."""
    head = HeadModules(args)
    nn.quantize(head, class_predicate=lambda path, module: _packing_of(artifact, path, module))
    head.load_weights(list(_weights(artifact).items()), strict=True)
    if mx.default_device() == mx.Device(mx.cpu):
        lay_out_for_cpu(head, tied_embedding=False)
    mx.eval(head.parameters())
    _check_norms(head)
    return head


def _check_norms(head: HeadModules) -> None:
    """Those of query and key once more, now as they are applied: a shift too many still drafts, only worse."""
    attention = head.block.self_attn
    for norm in (attention.q_norm, attention.k_norm):
        mean = norm.weight.astype(mx.float32).mean().item()
        assert isinstance(mean, float)
        if not LEAST <= mean <= MOST:
            raise ValueError(f"a norm of query or key would be applied with a mean of {mean:.2f}, not near 1")


def head_bytes(head: HeadModules) -> int:
    return sum(array.nbytes for _, array in tree_flatten(head.parameters()))


def _packing_of(artifact: HeadArtifact, path: str, module: Any) -> bool | dict[str, Any]:
    packing = artifact.packings.get(path)
    if packing is None or not hasattr(module, "to_quantized"):
        return False
    return {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}


def _weights(artifact: HeadArtifact) -> dict[str, mx.array]:
    """By the modules' own names: experts split, plain weights in the target's type, norms as they are applied."""
    found = dict(_split_experts(_read(artifact)))
    packed = {f"{path}.weight" for path in artifact.packings}
    dtype = DTYPES[artifact.dtype]
    for name, array in found.items():
        if name not in packed and mx.issubdtype(array.dtype, mx.floating):
            found[name] = array.astype(dtype)
    if artifact.shift_norms:
        found |= {f"{norm}.weight": found[f"{norm}.weight"] + 1.0 for norm in NORMS}
    return found


def _read(artifact: HeadArtifact) -> dict[str, mx.array]:
    by_shard: defaultdict[Path, list[tuple[str, str]]] = defaultdict(list)
    for name, tensor in artifact.tensors.items():
        by_shard[tensor.shard].append((name, tensor.name))
    found: dict[str, mx.array] = {}
    for shard, names in by_shard.items():
        stored: Any = mx.load(str(shard), format="safetensors")  # typed as any of the formats mx.load knows
        found |= {name: stored[own] for name, own in names}
    return found


def _split_experts(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Two fused stacks -> mlx-lm's three: gate and up lie one behind the other."""
    gate_up, down = f"{FUSED_EXPERTS}gate_up_proj", f"{FUSED_EXPERTS}down_proj"
    if gate_up not in tensors:
        return tensors
    stacks = FUSED_EXPERTS.replace("experts.", "switch_mlp.")
    gate, up = mx.split(tensors[gate_up], 2, axis=-2)
    split = {
        f"{stacks}gate_proj.weight": gate,
        f"{stacks}up_proj.weight": up,
        f"{stacks}down_proj.weight": tensors[down],
    }
    return {name: array for name, array in tensors.items() if name not in (gate_up, down)} | split
