"""PATH_OR_ID, as users write it after --model, to a directory on this machine and the id it serves under."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provider.errors import ModelError, ModelNotFound
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.hub import download
from provider.models.hub_cache import cache_directory, cached_model, id_of_snapshot
from provider.models.weight_files import read_weights

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    id: str
    directory: Path


def resolve_model(
    path_or_id: str,
    env: Mapping[str, str] = os.environ,
    fetch: Callable[[str], Path] = download,
) -> ResolvedModel:
    """A directory, the bundled model, a complete model of the Hugging Face cache, else a download of it.

    Raises ModelNotFound, saying what to do. Touches the network only for an `org/name` the cache lacks.
    """
    named = _named(path_or_id)
    if named is not None:
        return named
    cached = cached_model(cache_directory(env), path_or_id)
    if cached is not None and _is_complete(cached.directory):
        return ResolvedModel(cached.id, cached.directory)
    return ResolvedModel(path_or_id, fetch(path_or_id))


def find_model(path_or_id: str, env: Mapping[str, str] = os.environ) -> ResolvedModel:
    """As resolve_model, but only what is on this machine, and a model of the cache also when incomplete."""
    named = _named(path_or_id)
    if named is not None:
        return named
    cached = cached_model(cache_directory(env), path_or_id)
    if cached is None:
        raise ModelNotFound(f"{path_or_id} is not on this machine: `darkbloom-py models pull` fetches it.")
    return ResolvedModel(cached.id, cached.directory)


def model_id_of(directory: Path) -> str:
    """`org/name` for a snapshot of a Hugging Face cache, else the directory's own name."""
    absolute = Path(os.path.abspath(directory))
    if absolute == BUNDLED_MODEL_DIR:
        return BUNDLED_MODEL_ID
    return id_of_snapshot(absolute) or absolute.name


def _named(path_or_id: str) -> ResolvedModel | None:
    """The bundled model or a directory; None for the form of a hub id. Raises ModelNotFound for anything else."""
    if path_or_id == BUNDLED_MODEL_ID:
        return ResolvedModel(BUNDLED_MODEL_ID, BUNDLED_MODEL_DIR)
    if not path_or_id.strip():
        raise ModelNotFound(
            f"no model is named: pass the directory of a model, an id such as org/name, or {BUNDLED_MODEL_ID}."
        )
    path = Path(os.path.abspath(Path(path_or_id).expanduser()))
    if path.exists():
        return _from_directory(path)
    if HUB_ID.fullmatch(path_or_id):
        return None
    raise ModelNotFound(
        f"{path_or_id!r} is neither a directory nor a model id: pass the directory of a model, "
        f"an id such as org/name, or {BUNDLED_MODEL_ID}."
    )


def _from_directory(path: Path) -> ResolvedModel:
    if not path.is_dir():
        raise ModelNotFound(f"{path} is a file: pass the directory that holds config.json and the weights.")
    if not (path / "config.json").exists():
        raise ModelNotFound(f"{path} has no config.json: pass the directory of a model.")
    return ResolvedModel(model_id_of(path), path)


def _is_complete(directory: Path) -> bool:
    try:
        read_weights(directory)
    except ModelError:
        return False
    return True
