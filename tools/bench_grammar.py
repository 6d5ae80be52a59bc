"""What it costs to hold answers to a schema: making masks, applying them, and the engine's steps with and without.

    python -m tools.bench_grammar [--vocab-size 248000] [--tokenizer DIR] [--json]

Masks are made for a JSON value behind some thinking, token by token, as an engine asks for them, and take the time of
their thread, whoever else is at work. Without --tokenizer the vocabulary is one of --vocab-size pieces of text taken
from Python's own library; the bundled model's is measured too. The engine's steps are those of the bundled model, 8
chats at once, the kinds in turns.
"""

import argparse
import json
import re
import statistics
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.sampling import allow
from provider.engine import Engine
from provider.generation import GenerationRequest, Sampling
from provider.grammar.answer import Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.compiler import Compiler, Vocabulary
from provider.grammar.guide import masks
from provider.grammar.json_schema import usable
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 80},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "summary": {"type": "string"},
    },
    "required": ["title", "tags", "age", "summary"],
}
THOUGHT = "The user wants a record of the book. It has a title, some tags and an age, and a summary.\n" * 4
VALUE = json.dumps(
    {
        "title": "The return of the captain of the old ship",
        "tags": ["red", "blue"],
        "age": 44,
        "summary": "A captain returns to the town where he was born, and finds that nobody there knows his name. " * 4,
    }
)
PIECES = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\w\s]+|\s+")
ROWS, STEPS, ROUNDS = 8, 60, 5


class Pieces:
    """Implements provider.grammar.compiler.Vocabulary: the commonest pieces of the library's text, and their halves."""

    def __init__(self, size: int) -> None:
        seen: dict[str, None] = {}
        for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
            for piece in PIECES.findall(path.read_text(errors="replace")):
                for end in range(len(piece), 0, -1):
                    seen.setdefault(piece[:end][:16])
            if len(seen) >= size:
                break
        ends = [f"<|{number}|>".encode() for number in range(2)]
        self._tokens = [*ends, *(bytes([value]) for value in range(256)), *(one.encode() for one in seen)][:size]
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self.eos_token_ids = self.special_token_ids = frozenset(range(2))

    def __len__(self) -> int:
        return len(self._tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Of every piece the longest beginning that is a token, again and again."""
        ids, rest = [], text.encode()
        while rest:
            end = next(end for end in range(min(len(rest), 24), 0, -1) if rest[:end] in self._ids)
            ids.append(self._ids[rest[:end]])
            rest = rest[end:]
        return ids


def quantiles(taken_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(1000 * one for one in taken_s)
    return {
        "mean_ms": statistics.mean(ordered),
        "p50_ms": statistics.median(ordered),
        "p99_ms": ordered[int(0.99 * len(ordered))],
    }


def measure_masks(vocabulary: Vocabulary, size: int) -> dict[str, Any]:
    began = time.thread_time()
    compiler = Compiler(vocabulary, size)
    vocabulary_s = time.thread_time() - began
    grammar = answer_grammar(Thinking.BEGUN, usable(SCHEMA, "s", check), None, "s", check)
    began = time.thread_time()
    guide = compiler.guide(grammar)
    compile_ms = 1000 * (time.thread_time() - began)
    taken: dict[str, list[float]] = {"thinking": [], "value": []}
    for part, text in (("thinking", THOUGHT), ("value", f"</think>\n\n{VALUE}")):
        for token in vocabulary.encode(text):
            began = time.thread_time()
            masks([guide], size)
            taken[part].append(time.thread_time() - began)
            guide.note(token)
            assert guide.failure is None, guide.failure
    logits, words = mx.random.normal((ROWS, size)), masks([guide] * 1 + [None] * (ROWS - 1), size)
    mx.eval(logits)
    applied = []
    for _ in range(20):
        began = time.perf_counter()
        mx.eval(allow(logits, words))
        applied.append(time.perf_counter() - began)
    return {
        "vocab_size": size,
        "vocabulary_s": vocabulary_s,
        "compile_ms": compile_ms,
        "mask": {part: quantiles(ones) for part, ones in taken.items()},
        f"apply_to_{ROWS}_rows": quantiles(applied),
    }


def measure_steps(backend: MlxBackend, sampling: Sampling, tokenizer: ModelTokenizer) -> list[float]:
    """Seconds of each decode step of 8 chats."""
    engine = Engine(Scheduler(Limits(ROWS, 4000), Pool(100_000)), backend, tokenizer.decode)
    for number in range(ROWS):
        prompt = tokenizer.encode(f"Count from {number} to 99.")
        engine.submit(
            GenerationRequest(request_id=str(number), prompt=prompt, max_tokens=STEPS + 20, sampling=sampling)
        )
    while engine.scheduler.running < ROWS:
        engine.step(lambda _: None)
    taken = []
    for _ in range(STEPS):
        began = time.perf_counter()
        engine.step(lambda _: None)
        taken.append(time.perf_counter() - began)
    for number in range(ROWS):
        engine.cancel(str(number))
    return taken


def measure_engine() -> dict[str, Any]:
    tokenizer = ModelTokenizer(BUNDLED_MODEL_DIR)
    backend = MlxBackend(BUNDLED_MODEL_DIR)
    compiler = Compiler(tokenizer, backend.facts.vocab_size)
    backend.guide_with(compiler.guide)
    long = usable({"type": "array", "items": {"type": "string"}, "minItems": 1000}, "s", check)
    kinds = {
        "free": Sampling(temperature=0),
        "looking_back": Sampling(temperature=0, presence_penalty=1e-6),
        "guided": Sampling(temperature=0, grammar=answer_grammar(Thinking.DONE, long, None, "s", check)),
    }
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind, sampling in kinds.items():
            taken[kind] += measure_steps(backend, sampling, tokenizer)
    return {kind: quantiles(ones) for kind, ones in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-size", type=int, default=248_000)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    demo = ModelTokenizer(BUNDLED_MODEL_DIR)
    if told.tokenizer is None:
        pieces = Pieces(told.vocab_size)
        large = measure_masks(pieces, len(pieces))
    else:
        tokenizer = ModelTokenizer(told.tokenizer)
        large = measure_masks(tokenizer, tokenizer.vocab_size)
    result = {"bundled": measure_masks(demo, demo.vocab_size), "large": large, "steps": measure_engine()}
    print(json.dumps(result) if told.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
