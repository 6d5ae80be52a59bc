"""Token ids, special tokens and where the chat template comes from."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from provider.errors import ModelError
from provider.generation import TextTokenizer
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(BUNDLED_MODEL_DIR)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The bundled model's text files, without its template."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL_DIR / name, tmp_path / name)
    return tmp_path


def set_config(directory: Path, **values: object) -> None:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_it_is_the_tokenizer_the_engine_asks_for(tokenizer: TextTokenizer) -> None:
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.special_tokens == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert tokenizer.chat_template is not None


@pytest.mark.parametrize("text", ["Count from 1 to 9.", "naïve 🙂 café", "\n\n  \t", "", "<think>\nx\n</think>"])
def test_text_survives_the_round_trip(tokenizer: ModelTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_recognised_or_taken_as_text(tokenizer: ModelTokenizer) -> None:
    text = "a<|im_end|>b"

    assert 2 in tokenizer.encode(text)
    assert 2 not in tokenizer.encode(text, special=False)
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    assert 2 in tokenizer.encode(text)


def test_decoding_skips_special_tokens_and_keeps_ordinary_added_ones(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("<|im_start|><think>x</think><tool_call><|im_end|>")

    assert tokenizer.decode(ids) == "<think>x</think><tool_call>"
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("<|im_end|>")


def test_ids_beyond_the_vocabulary_decode_to_nothing(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size + 7]) == ""


def test_it_pickles_as_its_directory(tokenizer: ModelTokenizer) -> None:
    raw = pickle.dumps(tokenizer)

    assert len(raw) < 1000
    assert pickle.loads(raw).encode("one two") == tokenizer.encode("one two")


def test_the_template_file_wins_over_the_config(copied: Path) -> None:
    set_config(copied, chat_template="from config")
    (copied / "chat_template.jinja").write_text("from file")

    assert ModelTokenizer(copied).chat_template == "from file"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("plain", "plain"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
        (None, None),
    ],
)
def test_a_template_in_the_config_is_plain_or_named(copied: Path, declared: object, expected: str | None) -> None:
    set_config(copied, chat_template=declared)

    assert ModelTokenizer(copied).chat_template == expected


def test_template_tokens_are_strings_however_they_are_written(copied: Path) -> None:
    set_config(copied, bos_token={"content": "<s>"}, pad_token=None)

    assert ModelTokenizer(copied).template_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}


def test_a_broken_tokenizer_is_named(copied: Path) -> None:
    (copied / "tokenizer.json").write_text("{}")

    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        ModelTokenizer(copied)


def test_older_tokenizer_files_load_through_transformers(copied: Path) -> None:
    model = json.loads((copied / "tokenizer.json").read_text())["model"]
    (copied / "tokenizer.json").unlink()
    (copied / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (copied / "vocab.json").write_text(json.dumps(model["vocab"]))
    (copied / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    set_config(copied, tokenizer_class="GPT2Tokenizer", unk_token="<|endoftext|>", bos_token="<|endoftext|>")
    tokenizer = ModelTokenizer(copied)

    assert tokenizer.decode(tokenizer.encode("hello there")) == "hello there"


def test_no_tokenizer_at_all_is_an_error_with_a_remedy(copied: Path) -> None:
    (copied / "tokenizer.json").unlink()

    with pytest.raises(ModelError, match=r"add its tokenizer\.json"):
        ModelTokenizer(copied)


def test_importing_it_loads_no_array_library() -> None:
    code = (
        "import sys, provider.models.tokenizer, provider.models.checkpoint, provider.models.resolve; "
        "print([m for m in ('mlx', 'transformers', 'numpy', 'huggingface_hub') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "[]"
