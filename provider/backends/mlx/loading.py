"""A checkpoint -> mlx-lm's model, or a refusal before its weights are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import load_model

from provider.errors import ModelError, ModelUnsupported
from provider.models.checkpoint import Checkpoint
from provider.models.json_file import read_json_object

MOST_TOLD = 300


def load(checkpoint: Checkpoint) -> Any:
    """The model with its weights still to be read: they are when they are first used, or evaluated.

    Raises ModelError for a config that mlx-lm cannot build, or whose weights are others, and ModelUnsupported for what
    this machine's MLX has no operation for.
    """
    config = read_json_object(checkpoint.directory / "config.json")
    try:
        model, _ = load_model(checkpoint.directory, lazy=True, model_config=_overrides(checkpoint, config))
    except Exception as error:  # mlx-lm raises whatever a wrong value leads to
        raise misfit(checkpoint.directory, error) from error
    _refuse_unrunnable_experts(checkpoint, model)
    return model


def misfit(directory: Path, error: Exception) -> ModelError:
    """Of a model that cannot be made of its files, each of which can be read by itself."""
    told = f"{type(error).__name__}: {error}".partition("\n")[0][:MOST_TOLD]
    return ModelError(
        f"{directory}: no model can be made of its config.json and its weights ({told}): download the model again."
    )


def _overrides(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """`tie_word_embeddings` may stand at the root alone; mlx-lm looks for it beside the other dimensions only."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return {}
    return {"text_config": {**text, "tie_word_embeddings": checkpoint.architecture.tie_word_embeddings}}


def _refuse_unrunnable_experts(checkpoint: Checkpoint, model: Any) -> None:
    """MLX's CPU build multiplies by chosen experts in float32 or quantised; Metal and CUDA in any dtype."""
    dtypes = {module.weight.dtype for module in model.modules() if isinstance(module, SwitchLinear)}
    for dtype in dtypes:
        one = mx.ones((1, 1, 1), dtype)
        try:
            mx.eval(mx.gather_mm(one, one, rhs_indices=mx.array([0])))
        except RuntimeError as error:
            raise ModelUnsupported(
                f"{checkpoint.directory}: its experts are {str(dtype).removeprefix('mlx.core.')}, which MLX cannot "
                f"compute on {mx.default_device().type.name} ({error}): quantise it (mlx_lm.convert -q), convert it "
                "to float32, or serve it on a Mac or a GPU."
            ) from error
