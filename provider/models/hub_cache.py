"""The Hugging Face cache on disk, read by its layout so that nothing is imported and no network is touched.

<cache>/models--<org>--<name>/refs/main                 the commit that `main` was at the last download
<cache>/models--<org>--<name>/snapshots/<commit>/...    links to the files of that commit
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class CachedModel:
    id: str
    directory: Path


def cache_directory(env: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps its cache, by the variables it honours."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    base = Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = Path(env["HF_HOME"]).expanduser() if env.get("HF_HOME") else base / "huggingface"
    return home / "hub"


def cached_models(cache: Path) -> Iterator[CachedModel]:
    """Every model repository of the cache that has a snapshot with a config, in the order of their ids."""
    for repository in sorted(cache.glob(f"{PREFIX}*")):
        model = cached_model(cache, _id_of(repository.name))
        if model is not None:
            yield model


def cached_model(cache: Path, model_id: str) -> CachedModel | None:
    """The snapshot of `main`, or else the newest, that has a config.json. Its weights may be incomplete."""
    repository = cache / (PREFIX + model_id.replace("/", "--"))
    snapshots = sorted(repository.glob("snapshots/*/config.json"), key=_age, reverse=True)
    if not snapshots:
        return None
    main = repository / "snapshots" / _main_commit(repository) / "config.json"
    chosen = main if main in snapshots else snapshots[0]
    return CachedModel(model_id, chosen.parent)


def id_of_snapshot(directory: Path) -> str | None:
    """`org/name` when `directory` is a snapshot of a cache, wherever that cache lies."""
    repository = directory.parent.parent.name
    if directory.parent.name != "snapshots" or not repository.startswith(PREFIX):
        return None
    return _id_of(repository)


def _id_of(repository: str) -> str:
    return repository.removeprefix(PREFIX).replace("--", "/", 1)


def _main_commit(repository: Path) -> str:
    try:
        return (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _age(path: Path) -> float:
    """Modification time of the link itself: its target may be shared with other snapshots."""
    return path.lstat().st_mtime
