"""Downloads a model from the Hugging Face hub; every way that can fail is one error saying what to do."""

import sys
from pathlib import Path

from provider.errors import ModelNotFound

PATTERNS = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
]
"""What serving reads: never the duplicate weights in other formats that many repositories carry."""

ANSWER_TIMEOUT_S = 10.0
"""For the first answer of the hub; the download itself takes what it takes."""


def download(model_id: str) -> Path:
    """The directory of the downloaded snapshot; on a terminal with a bar for each file. Raises ModelNotFound."""
    from huggingface_hub import HfApi, errors, snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # public, made on demand

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        HfApi().model_info(model_id, timeout=ANSWER_TIMEOUT_S)
        return Path(snapshot_download(model_id, allow_patterns=PATTERNS, etag_timeout=ANSWER_TIMEOUT_S))
    except errors.OfflineModeIsEnabled as error:
        raise _not_found(model_id, "HF_HUB_OFFLINE is set. Unset it, or pass the directory of the model") from error
    except errors.GatedRepoError as error:
        raise _not_found(
            model_id, "access to it is gated. Accept its terms on huggingface.co, then set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise _not_found(
            model_id, "the hub has no such model. Check the spelling; a private model needs HF_TOKEN"
        ) from error
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # httpx's or httpx2's
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _not_found(
            model_id,
            f"the hub cannot be reached ({reason}). Check the network, or pass the directory of the model",
        ) from error


def _not_found(model_id: str, why: str) -> ModelNotFound:
    return ModelNotFound(f"{model_id} is not on this machine, or not all of it, and {why}.")
