"""The bundled model in the dtypes the engine serves: as shipped (bfloat16), float32, and quantised to 4 bits."""

import shutil
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from provider.models.bundled import BUNDLED_MODEL_DIR

VARIANTS = ("bfloat16", "float32", "4bit")
FILES = ("tokenizer.json", "tokenizer_config.json")


def write_variant(name: str, directory: Path) -> Path:
    """Writes one variant under `directory`; the shipped one needs no copy."""
    if name == "bfloat16":
        return BUNDLED_MODEL_DIR
    target = directory / f"demo-{name}"
    model, config = load_model(BUNDLED_MODEL_DIR)
    if name == "float32":
        model.set_dtype(mx.float32)
    else:
        model, config = quantize_model(model, config, group_size=32, bits=4)
    config.pop("mtplx_mtp", None)  # save_model writes the trunk alone
    save_model(target, model)
    save_config(config, target / "config.json")
    for file in FILES:
        shutil.copy(BUNDLED_MODEL_DIR / file, target / file)
    template = BUNDLED_MODEL_DIR / "chat_template.jinja"
    if template.exists():
        shutil.copy(template, target / template.name)
    return target
