"""The floating-point types weights come in, by their name in a safetensors header and by ours."""

from collections.abc import Mapping

from provider.models.safetensors_header import TensorInfo

FLOAT_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""In bytes."""

SPEAKERS = ("embed_tokens.scales", "embed_tokens.weight", "model.norm.weight")
"""The tensors that tell a model's type, first one first. Scales of the mxfp formats are bytes: there the norms tell."""


def activation_dtype(tensors: Mapping[str, TensorInfo]) -> str | None:
    """Of activations and KV: the embedding's, or that of its scales where it is quantised; None for another type."""
    for suffix in SPEAKERS:
        found = (info.dtype for name, info in tensors.items() if name.endswith(suffix))
        dtype = FLOAT_DTYPES.get(next(found, ""))
        if dtype is not None:
            return dtype
    return None
