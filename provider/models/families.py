"""The families that are served, and how each one's config.json gives its dimensions.

A family is served when the tests compare its tokens with mlx-lm's generator; to add one, add it here and there.
What is read here must be what mlx-lm builds: a config that says something else is refused, or its context is cut to
where the two agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from provider.errors import ModelError, ModelUnsupported
from provider.models.architecture import Architecture, LayerKind, Recurrence

Text = Mapping[str, Any]
"""The text part of a config.json."""
MOST = 2**31 - 1
"""No dimension is larger: MLX counts in 32 bits."""
MOST_LAYERS = 4096
"""A list of them is built before anything is compared with the weights."""
MOST_TOLD = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`own_head_dim`: a declared head_dim counts; else it is hidden_size / num_attention_heads.

    `slides`: a declared sliding_window is in force unless use_sliding_window says otherwise (transformers' default).
    """

    layers: Callable[[Text], tuple[LayerKind, ...]]
    own_head_dim: bool = True
    slides: bool = False


def text_config(config: Mapping[str, Any]) -> Text:
    """Nested under `text_config`, or the config itself."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def read_architecture(family: str, config: Mapping[str, Any]) -> Architecture:
    """Raises ModelError, naming the key, when the config is incomplete, ModelUnsupported when it contradicts itself or
    says what is not served."""
    text, rules = text_config(config), FAMILIES[family]
    hidden_size, heads = _count(text, "hidden_size"), _count(text, "num_attention_heads")
    even = hidden_size // heads
    kinds = rules.layers(text)
    return Architecture(
        vocab_size=_count(text, "vocab_size"),
        hidden_size=hidden_size,
        context_length=_context_length(text, rules, kinds),
        layer_kinds=kinds,
        attention_heads=heads,
        kv_heads=_count(text, "num_key_value_heads"),
        head_dim=_count(text, "head_dim", even) if rules.own_head_dim else even,
        tie_word_embeddings=_ties(config, text),
        recurrence=_recurrence(text) if LayerKind.LINEAR in kinds else None,
        sliding_window=_count(text, "sliding_window") if LayerKind.SLIDING in kinds else None,
    )


def _count(text: Text, key: str, default: int | None = None, most: int = MOST) -> int:
    value = text.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        told = f"{key} must be a positive integer of at most {most}, not {repr(value)[:MOST_TOLD]}"
        raise ModelError(f"config.json: {told}: correct it, or download the model again.")
    return value


def _layers(text: Text) -> int:
    return _count(text, "num_hidden_layers", most=MOST_LAYERS)


def _ties(config: Mapping[str, Any], text: Text) -> bool:
    """The text part's word, and the root's where it is silent."""
    return bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))


def _context_length(text: Text, rules: Family, kinds: tuple[LayerKind, ...]) -> int:
    """Ends at the window of a model whose layers slide where mlx-lm's do not: up to there the two are the same."""
    context = _count(text, "max_position_embeddings")
    slides = text.get("sliding_window") is not None and text.get("use_sliding_window", rules.slides)
    if slides and LayerKind.SLIDING not in kinds:
        return min(context, _count(text, "sliding_window"))
    return context


def _recurrence(text: Text) -> Recurrence:
    return Recurrence(
        key_heads=_count(text, "linear_num_key_heads"),
        value_heads=_count(text, "linear_num_value_heads"),
        key_head_dim=_count(text, "linear_key_head_dim"),
        value_head_dim=_count(text, "linear_value_head_dim"),
        conv_kernel=_count(text, "linear_conv_kernel_dim", 4),
    )


def _all_full(text: Text) -> tuple[LayerKind, ...]:
    return (LayerKind.FULL,) * _layers(text)


def _declared(text: Text) -> tuple[LayerKind, ...]:
    """By `layer_types`; all full without them."""
    default = _all_full(text)
    names = text.get("layer_types") or default
    served = (LayerKind.FULL, LayerKind.SLIDING)
    if not isinstance(names, list | tuple) or len(names) != len(default) or not set(names) <= set(served):
        raise ModelUnsupported(f"config.json: layer_types must name {' or '.join(served)} for every layer.")
    if LayerKind.FULL not in names:  # mlx-lm looks for one
        raise ModelUnsupported("config.json: layer_types without a full_attention layer are not served.")
    return tuple(map(LayerKind, names))


def _alternating(text: Text) -> tuple[LayerKind, ...]:
    """By `layer_types`; sliding and full in turn without them (gpt-oss). mlx-lm looks for one of each."""
    layers = _layers(text)
    pair = (LayerKind.SLIDING, LayerKind.FULL)
    kinds = _declared({**text, "layer_types": text.get("layer_types") or pair * (layers // 2)})
    if LayerKind.SLIDING not in kinds:
        raise ModelUnsupported("config.json: layer_types without a sliding_attention layer are not served.")
    return kinds


def _intervals(key: str, default: int, between: LayerKind) -> Callable[[Text], tuple[LayerKind, ...]]:
    """A full-attention layer at the end of every interval, which is what mlx-lm builds whatever `layer_types` says."""

    def kinds(text: Text) -> tuple[LayerKind, ...]:
        interval = _count(text, key, default)
        built = tuple(between if (layer + 1) % interval else LayerKind.FULL for layer in range(_layers(text)))
        declared = text.get("layer_types")
        if declared is not None and declared != list(built):
            raise ModelUnsupported(
                f"config.json: layer_types disagrees with {key} {interval}: "
                "only a full-attention layer at the end of every interval is served."
            )
        return built

    return kinds


_hybrid = Family(layers=_intervals("full_attention_interval", 4, LayerKind.LINEAR))

FAMILIES: Mapping[str, Family] = {
    "qwen3_5": _hybrid,
    "qwen3_5_moe": _hybrid,
    "gemma2": Family(layers=_all_full, slides=True),
    "gemma3_text": Family(layers=_intervals("sliding_window_pattern", 6, LayerKind.SLIDING)),
    "gpt_oss": Family(layers=_alternating),
    "granite": Family(layers=_all_full, own_head_dim=False),
    "llama": Family(layers=_declared),
    "mistral": Family(layers=_declared, slides=True),
    "mixtral": Family(layers=_all_full, own_head_dim=False, slides=True),
    "olmo2": Family(layers=_all_full),
    "phi3": Family(layers=_all_full, own_head_dim=False, slides=True),
    "qwen2": Family(layers=_all_full, own_head_dim=False),
    "qwen2_moe": Family(layers=_all_full, own_head_dim=False),
    "qwen3": Family(layers=_all_full),
    "qwen3_moe": Family(layers=_all_full),
    "smollm3": Family(layers=_all_full),
}
"""By `model_type`, as config.json writes it and mlx-lm looks it up."""
