"""Trains the bundled model: tokenizer, trunk and prediction head together, then the export to MLX layout.

    pip install '.[train]'
    python -m tools.train_demo_model tokenizer RUN
    python -m tools.train_demo_model train RUN --stage format              # about 10 minutes on 2 cores
    python -m tools.train_demo_model train RUN --stage recall --resume     # about an hour
    python -m tools.train_demo_model export RUN DIRECTORY --dtype bf16

The stage `format` teaches the forms of chat, thinking and tool calls (loss 6.9 -> 1.1); recall of capitals,
copying and sums appears only in the second. The head is trained on the trunk's own hidden states, weighted so
that it does not disturb them. Everything it learns is in tools/demo_repertoire.py.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

from provider.models.bundled import BUNDLED_MODEL_DIR
from tools.demo_repertoire import TRAINING_SEED, draw, english

VOCAB_SIZE = 1024
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Ordinary added tokens, as in Qwen's tokenizers: decoding keeps them."""
END_OF_TEXT, END_OF_TURN = 0, 2
TOKENIZER_CHATS = 3000

LAYERS, FULL_ATTENTION_INTERVAL = 8, 4
HEAD_LAYER = FULL_ATTENTION_INTERVAL - 1
"""A layer index whose kind is full attention, which is what the head's one layer has to be."""
HEAD_LOSS_WEIGHT = 0.3
ENGLISH_TOKENS = 300
WARM_UP_STEPS = 50
LAST_LEARNING_RATE = 0.05
"""Of the stage's own, at its end."""
REPORT_EVERY, SAVE_EVERY = 25, 200

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TRUNK_FILE, HEAD_FILE = "model-00001-of-00001.safetensors", "mtp-00001.safetensors"
UNSHIFTED_NORM = "linear_attn.norm.weight"
"""The gated norm: the only one whose weight transformers keeps as it is applied."""
CONFIG_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "tie_word_embeddings",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
)
TEXT_FILES = ("tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Stage:
    """One run over freshly drawn batches; `english_share` of the documents are prose."""

    steps: int
    sequence_tokens: int
    batch_rows: int
    learning_rate: float
    english_share: float


STAGES = {
    "format": Stage(steps=1000, sequence_tokens=256, batch_rows=8, learning_rate=3e-3, english_share=0.15),
    "recall": Stage(steps=6000, sequence_tokens=160, batch_rows=12, learning_rate=2.5e-3, english_share=0.04),
}


def main() -> None:
    arguments = _parser().parse_args()
    arguments.run.mkdir(parents=True, exist_ok=True)
    match arguments.command:
        case "tokenizer":
            train_tokenizer(arguments.run)
        case "train":
            stage = STAGES[arguments.stage]
            steps = arguments.steps or stage.steps
            train(arguments.run, replace(stage, steps=steps), arguments.resume)
        case "export":
            export(arguments.run, arguments.directory, DTYPES[arguments.dtype])


# Tokenizer


def train_tokenizer(run: Path) -> None:
    """Byte-level BPE whose digits stay single, so that numbers are spelled and can be counted."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token) for token in (*SPECIAL_TOKENS, *ADDED_TOKENS)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    rng = Random(TRAINING_SEED)
    tokenizer.train_from_iterator([english(), *(draw(rng).text for _ in range(TOKENIZER_CHATS))], trainer)
    written = json.loads(tokenizer.to_str())
    for token in written["added_tokens"]:  # the trainer marks all of them special
        token["special"] = token["content"] in SPECIAL_TOKENS
    (run / "tokenizer.json").write_text(json.dumps(written, ensure_ascii=False))


# Models


def trunk_config(vocab_size: int) -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        full_attention_interval=FULL_ATTENTION_INTERVAL,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        eos_token_id=END_OF_TURN,
        pad_token_id=END_OF_TEXT,
        bos_token_id=None,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
        },
    )


class Head(nn.Module):
    """hidden [B, T, H], the trunk's after its final norm at t, and the embedding of token t + 1
    -> hidden [B, T, H] that predicts token t + 2 (docs/mtp.md)."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = _norm(config)
        self.pre_fc_norm_hidden = _norm(config)
        self.norm = _norm(config)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, HEAD_LAYER)])

    def forward(
        self, embedding: torch.Tensor, hidden: torch.Tensor, rope: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        joined = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1)
        mixed = self.layers[0](self.fc(joined), position_embeddings=rope, attention_mask=mask)
        return self.norm(mixed[0] if isinstance(mixed, tuple) else mixed)


def _norm(config: Qwen3_5TextConfig) -> Qwen3_5RMSNorm:
    return Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


# Training


def train(run: Path, stage: Stage, resume: bool) -> None:
    """Writes RUN/checkpoint.pt now and then and at the end; `resume` begins with the one that is there."""
    torch.manual_seed(TRAINING_SEED)
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    config = trunk_config(tokenizer.get_vocab_size())
    trunk, head = Qwen3_5ForCausalLM(config), Head(config)
    if resume:
        saved = torch.load(run / "checkpoint.pt", weights_only=True)
        trunk.load_state_dict(saved["trunk"])
        head.load_state_dict(saved["head"])
    parameters = [*trunk.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=stage.learning_rate, weight_decay=0.01, betas=(0.9, 0.95))
    drawn = batches(tokenizer, stage)
    started = time.monotonic()
    for step in range(stage.steps):
        set_learning_rate(optimizer, stage, step)
        trunk_loss, head_loss = losses(trunk, head, next(drawn))
        optimizer.zero_grad()
        (trunk_loss + HEAD_LOSS_WEIGHT * head_loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        last = step == stage.steps - 1
        if step % REPORT_EVERY == 0 or last:
            spent = time.monotonic() - started
            print(f"step {step} trunk {trunk_loss:.3f} head {head_loss:.3f} {spent:.1f} s", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or last:
            torch.save({"trunk": trunk.state_dict(), "head": head.state_dict()}, run / "checkpoint.pt")


def batches(tokenizer: Tokenizer, stage: Stage) -> Iterator[torch.Tensor]:
    """[rows, tokens + 1] cut from one endless stream of chats and prose."""
    rng = Random(TRAINING_SEED)
    prose = tokenizer.encode(english()).ids
    wanted = stage.batch_rows * (stage.sequence_tokens + 1)
    stream: list[int] = []
    while True:
        while len(stream) < wanted:
            if rng.random() < stage.english_share:
                start = rng.randrange(len(prose) - ENGLISH_TOKENS)
                stream += [*prose[start : start + ENGLISH_TOKENS], END_OF_TEXT]
            else:
                stream += tokenizer.encode(draw(rng).text).ids
        yield torch.tensor(stream[:wanted]).view(stage.batch_rows, stage.sequence_tokens + 1)
        stream = stream[wanted:]


def losses(trunk: Qwen3_5ForCausalLM, head: Head, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of predicting the next token, and of the head's predicting the one after."""
    tokens, targets = batch[:, :-1], batch[:, 1:]
    hidden = trunk.model(input_ids=tokens).last_hidden_state
    width = hidden.shape[1] - 1
    positions = torch.arange(width).expand(3, hidden.shape[0], width)
    rope = trunk.model.rotary_emb(hidden[:, :-1], positions)
    causal = torch.full((width, width), float("-inf")).triu(1)[None, None]
    drafted = head(trunk.model.embed_tokens(tokens[:, 1:]), hidden[:, :-1], rope, causal)
    return _loss(trunk.lm_head(hidden), targets), _loss(trunk.lm_head(drafted), targets[:, 1:])


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def set_learning_rate(optimizer: torch.optim.Optimizer, stage: Stage, step: int) -> None:
    """A short warm-up, then linear decay."""
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    decay = LAST_LEARNING_RATE + (1 - LAST_LEARNING_RATE) * (1 - step / stage.steps)
    for group in optimizer.param_groups:
        group["lr"] = stage.learning_rate * warm_up * decay


# Export


def export(run: Path, directory: Path, dtype: torch.dtype) -> None:
    """The MLX layout with the inline head: trunk and head in shards of their own, index, config, text files."""
    directory.mkdir(parents=True, exist_ok=True)
    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    trunk = {
        f"language_model.{name}": converted(name, tensor, dtype)
        for name, tensor in saved["trunk"].items()
        if name != "lm_head.weight"  # tied
    }
    head = {f"mtp.{name}": converted(name, tensor, dtype) for name, tensor in saved["head"].items()}
    save_file(trunk, directory / TRUNK_FILE, {"format": "mlx"})
    save_file(head, directory / HEAD_FILE, {"format": "mlx"})
    vocab_size = trunk["language_model.model.embed_tokens.weight"].shape[0]
    write_json(directory / "model.safetensors.index.json", index(trunk, head))
    write_json(directory / "config.json", config_json(trunk_config(vocab_size)))
    shutil.copy(run / "tokenizer.json", directory / "tokenizer.json")
    for name in TEXT_FILES:
        shutil.copy(BUNDLED_MODEL_DIR / name, directory / name)


def converted(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """MLX holds norm weights as they are applied, convolutions channels-last, and A_log in float32."""
    tensor = tensor.float()
    if name.endswith("conv1d.weight"):
        tensor = tensor.movedim(2, 1)
    is_norm = tensor.ndim == 1 and "norm" in name
    if is_norm and not name.endswith(UNSHIFTED_NORM):
        tensor = tensor + 1
    return tensor.to(torch.float32 if name.endswith("A_log") else dtype).contiguous()


def index(trunk: dict[str, torch.Tensor], head: dict[str, torch.Tensor]) -> dict[str, Any]:
    total = sum(tensor.nbytes for tensor in (*trunk.values(), *head.values()))
    weight_map = {**dict.fromkeys(trunk, TRUNK_FILE), **dict.fromkeys(head, HEAD_FILE)}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def config_json(config: Qwen3_5TextConfig) -> dict[str, Any]:
    """With the inline contract of a prediction head (docs/mtp.md): one layer, one token and two drafts a block."""
    text = {key: value for key, value in config.to_dict().items() if key in CONFIG_KEYS}
    text |= {
        "model_type": "qwen3_5_text",
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "mtp_num_hidden_layers": 1,
        "eos_token_id": END_OF_TURN,
        "layer_types": list(config.layer_types),
    }
    return {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": True,
        "eos_token_id": END_OF_TURN,
        "mtplx_mtp": {"included": True, "prefix": "mtp.", "block_size": 3},
        "mtplx_mtp_quantization": {},
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    tokenizer = commands.add_parser("tokenizer", help="train the tokenizer")
    training = commands.add_parser("train", help="train trunk and head")
    exporting = commands.add_parser("export", help="write the MLX layout")
    for command in (tokenizer, training, exporting):
        command.add_argument("run", type=Path, help="the directory of this training run")
    training.add_argument("--stage", choices=STAGES, default="format")
    training.add_argument("--steps", type=int, help="instead of the stage's own number")
    training.add_argument("--resume", action="store_true", help="begin with the run's checkpoint")
    exporting.add_argument("directory", type=Path)
    exporting.add_argument("--dtype", choices=DTYPES, default="bf16")
    return parser


if __name__ == "__main__":
    main()
