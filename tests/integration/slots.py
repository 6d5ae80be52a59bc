"""A model slot with a real worker, for tests: `async with demo_slot() as slot`."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from provider.generation import Delta, Finished, GenerationRequest, Notice, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.pipe import LoadSpec
from provider.runner import ProcessRunner, Runner
from provider.slot import ModelSlot, SlotLimits

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)


@asynccontextmanager
async def demo_slot(
    directory: Path = BUNDLED_MODEL_DIR,
    create_runner: Callable[[], Runner] = ProcessRunner,
    max_waiting: int = 100,
    hang_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    **spec: Any,
) -> AsyncIterator[ModelSlot]:
    limits = {"max_concurrent": 8, **spec}
    slot = ModelSlot(
        "demo",
        TOKENIZER,
        LoadSpec(backend="mlx", directory=str(directory), **limits),
        SlotLimits(limits["max_concurrent"], max_waiting),
        create_runner,
        hang_s=hang_s,
        clock=clock,
    )
    await slot.start()
    try:
        yield slot
    finally:
        await slot.stop()


def ask(text: str, request_id: str, max_tokens: int | None = 24, stops: bool = False, **more: Any) -> GenerationRequest:
    """A greedy request for a chat turn; it runs past the end of the turn unless `stops`."""
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    fields: dict[str, Any] = {
        "request_id": request_id,
        "prompt": TOKENIZER.encode(prompt),
        "max_tokens": max_tokens,
        "sampling": Sampling(temperature=0),
        "stop_token_ids": sorted(TOKENIZER.eos_token_ids) if stops else [],
        **more,
    }
    return GenerationRequest(**fields)


async def collect(slot: ModelSlot, request: GenerationRequest) -> tuple[str, list[int], Finished]:
    """Text, tokens and the end of one generation."""
    text, tokens = "", list[int]()
    async for event in slot.generate(request):
        match event:
            case Delta():
                text += event.text
                tokens += event.token_ids
            case Notice():
                pass
            case Finished():
                return text, tokens, event
    raise AssertionError("a generation ends with Finished")
