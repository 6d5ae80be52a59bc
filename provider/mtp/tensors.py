"""The tensors of a head, by formula from its target's dimensions: which there are, and of what shape.

    x = fc(concat([RMSNorm(embedding), RMSNorm(hidden)]));  y = RMSNorm(block(x))

`block` is one full-attention layer of the target's kind: 15 tensors with a dense feed-forward, 19 with experts in two
fused stacks, 20 with three. A packed module has scales beside its weight, and biases in the affine mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from provider.mtp.packing import Packing

Shape = tuple[int, ...]

BLOCK = "layers.0"
NORMS = (
    "pre_fc_norm_embedding",
    "pre_fc_norm_hidden",
    "norm",
    f"{BLOCK}.input_layernorm",
    f"{BLOCK}.post_attention_layernorm",
    f"{BLOCK}.self_attn.q_norm",
    f"{BLOCK}.self_attn.k_norm",
)
"""All of them follow the checkpoint's rule: applied as stored in MLX's layout, stored less one in Hugging Face's."""
QK_NORMS = NORMS[-2:]
FUSED_EXPERTS = f"{BLOCK}.mlp.experts."


@dataclass(frozen=True, slots=True)
class Dense:
    intermediate_size: int


@dataclass(frozen=True, slots=True)
class Experts:
    """`count` experts of `intermediate_size`, a router, and one shared expert with a gate."""

    count: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDimensions:
    """The target's, which are the head's."""

    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    feed_forward: Dense | Experts

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Of the head's own attention layer."""
        return 2 * self.kv_heads * self.head_dim * itemsize


def norms(dimensions: HeadDimensions) -> dict[str, Shape]:
    """By path; the tensor is `<path>.weight`."""
    return {path: (dimensions.head_dim,) if path in QK_NORMS else (dimensions.hidden_size,) for path in NORMS}


def linears(dimensions: HeadDimensions, fused: bool) -> dict[str, Shape]:
    """[out, in] by path, [experts, out, in] for stacks; the tensor is `<path>.weight`.

    `fused`: the experts are stored as fused_experts() has them, and are not among these.
    """
    hidden, query = dimensions.hidden_size, dimensions.attention_heads * dimensions.head_dim
    kv = dimensions.kv_heads * dimensions.head_dim
    return {
        "fc": (hidden, 2 * hidden),
        f"{BLOCK}.self_attn.q_proj": (2 * query, hidden),  # of each head: query, then gate
        f"{BLOCK}.self_attn.k_proj": (kv, hidden),
        f"{BLOCK}.self_attn.v_proj": (kv, hidden),
        f"{BLOCK}.self_attn.o_proj": (hidden, query),
        **_feed_forward(dimensions, fused),
    }


def fused_experts(dimensions: HeadDimensions) -> dict[str, Shape]:
    """By name: these two have no `.weight`, and are never packed."""
    experts, hidden = dimensions.feed_forward, dimensions.hidden_size
    assert isinstance(experts, Experts)
    return {
        f"{FUSED_EXPERTS}gate_up_proj": (experts.count, 2 * experts.intermediate_size, hidden),
        f"{FUSED_EXPERTS}down_proj": (experts.count, hidden, experts.intermediate_size),
    }


def packed(shape: Shape, packing: Packing) -> dict[str, Shape]:
    """The tensors of a packed module whose weight is [..., out, in], by their last name.

    Raises ValueError where rows of `in` cannot be packed so.
    """
    *outer, width = shape
    if width % packing.group_size or width * packing.bits % 32:
        raise ValueError(f"rows of {width} are no whole number of groups of {packing.group_size}")
    names = ("scales", "biases") if packing.has_biases else ("scales",)
    groups = (*outer, width // packing.group_size)
    return {"weight": (*outer, width * packing.bits // 32), **dict.fromkeys(names, groups)}


def shapes(dimensions: HeadDimensions, fused: bool, packings: Mapping[str, Packing]) -> dict[str, Shape]:
    """Every tensor the head must have, and no other. `packings`: of its packed modules."""
    found = {f"{path}.weight": shape for path, shape in norms(dimensions).items()}
    if fused:
        found |= fused_experts(dimensions)
    for path, shape in linears(dimensions, fused).items():
        packing = packings.get(path)
        parts = {"weight": shape} if packing is None else packed(shape, packing)
        found |= {f"{path}.{part}": of for part, of in parts.items()}
    return found


def _feed_forward(dimensions: HeadDimensions, fused: bool) -> dict[str, Shape]:
    hidden, mlp = dimensions.hidden_size, f"{BLOCK}.mlp"
    match dimensions.feed_forward:
        case Dense(inner):
            return _gated(mlp, hidden, inner)
        case Experts(count, inner, shared):
            stacks = {path: (count, *shape) for path, shape in _gated(f"{mlp}.switch_mlp", hidden, inner).items()}
            return {
                f"{mlp}.gate": (count, hidden),
                **({} if fused else stacks),
                **_gated(f"{mlp}.shared_expert", hidden, shared),
                f"{mlp}.shared_expert_gate": (1, hidden),
            }
        case _:
            assert_never(dimensions.feed_forward)


def _gated(path: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {
        f"{path}.gate_proj": (inner, hidden),
        f"{path}.up_proj": (inner, hidden),
        f"{path}.down_proj": (hidden, inner),
    }
