"""Which tokens end a generation, gathered from every file of a checkpoint that may say so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provider.models.json_file import read_json_object, read_optional_json_object


def eos_token_ids(directory: Path) -> frozenset[int]:
    """The union over generation_config.json, config.json (and its text part) and the tokenizer.

    A union, because the files of published checkpoints disagree (config says end-of-text where the chat ends
    turns with another token) and a missed end runs on to the limit.
    """
    config = read_json_object(directory / "config.json")
    generation = read_optional_json_object(directory / "generation_config.json")
    text = config.get("text_config")
    sources = [generation, config, text if isinstance(text, dict) else {}]
    ids = {token for source in sources for token in _listed(source.get("eos_token_id"))}
    return frozenset(ids | set(_tokenizer_eos(directory)))


def token_text(value: Any) -> str | None:
    """A token as the tokenizer files write it: a string, or an object with its `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _listed(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [token for token in values if isinstance(token, int) and not isinstance(token, bool)]


def _tokenizer_eos(directory: Path) -> Iterator[int]:
    config = read_optional_json_object(directory / "tokenizer_config.json")
    eos = token_text(config.get("eos_token"))
    if eos is None:
        return
    declared = config.get("added_tokens_decoder")
    if isinstance(declared, dict):
        yield from (int(key) for key, token in declared.items() if token_text(token) == eos)
        return
    added = read_optional_json_object(directory / "tokenizer.json").get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("content") == eos:
            yield from _listed(token.get("id"))
