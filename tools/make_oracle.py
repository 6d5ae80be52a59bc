"""Writes tests/fixtures/oracle.json: what transformers' Qwen3.5, in torch and float32, answers.

    pip install '.[train]'
    python -m tools.make_oracle

For every model of tests/fixtures/oracle_models.py and every prompt: the greedy tokens, and at each step the
largest logits. The test that reads it needs no torch (tests/integration/test_oracle.py). Run it again when a
model or a prompt changes; it refuses to write a choice so close that rounding could turn it.
"""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from provider.models.bundled import BUNDLED_MODEL_ID
from provider.models.tokenizer import ModelTokenizer
from tests.fixtures.oracle_models import NAMES, ORACLE, STEPS, TOP, model_directory, weights_digest

TEXT_PROMPTS = (
    "<|im_start|>user\nCount from 17 to 40.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 23 + 14?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nRepeat exactly, nothing else: stone river cloud apple<|im_end|>\n<|im_start|>assistant\n",
    "The return statement leaves the current function call with the expression list as its value.",
)
RANDOM_LENGTHS = (1, 7, 70, 130)
"""Below, around and beyond the chunks in which implementations compute the recurrence."""
MARGIN = 2e-3
"""Least distance between the two largest logits of a step, well above the test's tolerance."""
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "q_norm.weight", "k_norm.weight")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        models = {name: answers(name, model_directory(name, Path(scratch))) for name in NAMES}
    told = {"transformers_dtype": "float32", "steps": STEPS, "top": TOP, "models": models}
    ORACLE.write_text(json.dumps(told, separators=(",", ":")) + "\n")
    print(f"{ORACLE}: {ORACLE.stat().st_size} bytes")


def answers(name: str, directory: Path) -> dict[str, Any]:
    model = load_model(directory)
    prompts = text_prompts(directory) if name == BUNDLED_MODEL_ID else random_prompts(model.config.vocab_size)
    return {
        "weights_sha256": weights_digest(directory),
        "prompts": [greedy(model, prompt) for prompt in prompts],
    }


def load_model(directory: Path) -> Qwen3_5ForCausalLM:
    """The trunk of an MLX checkpoint, its layout turned back into transformers'."""
    config = json.loads((directory / "config.json").read_text())["text_config"]
    known = {key: value for key, value in config.items() if key != "model_type"}
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**known)).float().eval()
    (path,) = directory.glob("model*.safetensors")
    state = {name: restored(name, tensor) for name, tensor in load_file(path).items()}
    state = {name.removeprefix("language_model."): tensor for name, tensor in state.items()}
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def restored(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """MLX layout holds the norms' weights as they are applied, and the convolution's channels last."""
    tensor = tensor.float()
    if name.endswith("conv1d.weight"):
        return tensor.movedim(2, 1).contiguous()
    if name.endswith(NORMS) or name == "language_model.model.norm.weight":
        return tensor - 1
    return tensor


def text_prompts(directory: Path) -> list[list[int]]:
    tokenizer = ModelTokenizer(directory)
    return [tokenizer.encode(text) for text in TEXT_PROMPTS]


def random_prompts(vocab_size: int) -> list[list[int]]:
    rng = random.Random(vocab_size)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in RANDOM_LENGTHS]


@torch.inference_mode()
def greedy(model: Qwen3_5ForCausalLM, prompt: list[int]) -> dict[str, Any]:
    """STEPS greedy tokens, each by a forward over everything before it: no cache, so nothing but the formula."""
    tokens, steps = list(prompt), []
    for _ in range(STEPS):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        top = torch.topk(logits, TOP)
        if top.values[0] - top.values[1] < MARGIN:
            raise SystemExit(f"a tie at step {len(steps)} after {prompt[:8]}...: choose another prompt or seed")
        values = [float(np.float32(value)) for value in top.values.tolist()]
        steps.append({"ids": top.indices.tolist(), "logits": [round(value, 5) for value in values]})
        tokens.append(int(top.indices[0]))
    return {"prompt": prompt, "tokens": tokens[len(prompt) :], "top": steps}


if __name__ == "__main__":
    main()
