"""The text side of a checkpoint: token ids, special tokens and the chat template.

Built on `tokenizers` directly, which imports in milliseconds; transformers is loaded only for a checkpoint
that has no tokenizer.json.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from provider.errors import ModelError
from provider.models.eos import eos_token_ids, token_text
from provider.models.json_file import read_optional_json_object
from provider.models.token_bytes import TokenBytes

NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""The variables a chat template may use, filled from tokenizer_config.json (`template_tokens`)."""


class ModelTokenizer:
    """Implements provider.generation.TextTokenizer for one model directory.

    Pickles as its directory: a worker process builds its own. Safe to share between threads.
    """

    def __init__(self, directory: Path) -> None:
        """Raises ModelError when the tokenizer's files are missing or broken."""
        config = read_optional_json_object(directory / "tokenizer_config.json")
        self._directory = directory
        self._tokenizer = _load(directory)
        self.eos_token_ids: frozenset[int] = eos_token_ids(directory)
        self.chat_template: str | None = _chat_template(directory, config)
        self.special_tokens: frozenset[str] = _special_tokens(self._tokenizer)
        self.special_token_ids: frozenset[int] = _special_token_ids(self._tokenizer)
        self.template_tokens: Mapping[str, str] = _template_tokens(config)

    def __reduce__(self) -> tuple[type["ModelTokenizer"], tuple[Path]]:
        return ModelTokenizer, (self._directory,)

    @property
    def vocab_size(self) -> int:
        """Distinct tokens; the model's own vocabulary may be padded beyond it."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, special: bool = True) -> list[int]:
        tokenizer = self._tokenizer if special else self._literal
        # The batch form lets other threads run meanwhile, and keeps no offsets: less than half the time and memory.
        ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text, which need not be whole characters; nothing for an id that has no token."""
        return self._bytes.of(token_id)

    @cached_property
    def _bytes(self) -> TokenBytes:
        return TokenBytes(self._tokenizer)

    @cached_property
    def _literal(self) -> Tokenizer:
        """A second instance, because the switch is a property of the tokenizer and not of the call."""
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        return tokenizer


def _load(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.exists():
        return _from_transformers(directory)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare Exception for whatever it cannot parse
        raise ModelError(f"{path} cannot be read ({error}): download the model again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _from_transformers(directory: Path) -> Tokenizer:
    """Builds the fast tokenizer that transformers derives from older files (vocab.json, merges.txt ...)."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{directory} has no usable tokenizer ({error}): add its tokenizer.json.") from error
    tokenizer = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise ModelError(f"{directory} has only a slow tokenizer: add its tokenizer.json.")
    if not tokenizer.encode("a").ids:  # transformers makes an empty one where it finds no vocabulary
        raise ModelError(f"{directory} has no vocabulary: add its tokenizer.json.")
    return tokenizer


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if template is None:
        template = read_optional_json_object(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(tokenizer: Tokenizer) -> frozenset[str]:
    added = tokenizer.get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if token.special)


def _special_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def _template_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: token_text(config.get(name)) for name in NAMED_TOKENS}
    return {name: text for name, text in texts.items() if text is not None}
