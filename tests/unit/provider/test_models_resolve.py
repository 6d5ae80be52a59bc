"""From what a user writes after --model to a directory and an id."""

import shutil
from pathlib import Path

import pytest

from provider.errors import ModelNotFound
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.hub_cache import cache_directory, cached_models
from provider.models.resolve import model_id_of, resolve_model
from tests.fixtures.checkpoints import write_model, write_sharded_model


def refuse(model_id: str) -> Path:
    raise ModelNotFound(f"{model_id} was asked of the hub")


def cached(cache: Path, name: str, commit: str, main: bool = True) -> Path:
    """An empty snapshot directory of a repository of the cache."""
    snapshot = cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    if main:
        (snapshot.parent.parent / "refs").mkdir(exist_ok=True)
        (snapshot.parent.parent / "refs" / "main").write_text(commit)
    return snapshot


def test_the_bundled_id_needs_nothing_else() -> None:
    assert resolve_model(BUNDLED_MODEL_ID, {}, refuse).directory == BUNDLED_MODEL_DIR


def test_the_bundled_directory_has_the_bundled_id() -> None:
    assert resolve_model(str(BUNDLED_MODEL_DIR), {}, refuse).id == BUNDLED_MODEL_ID


def test_a_directory_is_served_under_its_own_name(tmp_path: Path) -> None:
    found = resolve_model(str(write_model(tmp_path / "my-model")) + "/", {}, refuse)

    assert (found.id, found.directory) == ("my-model", tmp_path / "my-model")


def test_a_relative_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")

    assert resolve_model(".", {}, refuse).id == "here"


@pytest.mark.parametrize("text", ["/no/such/model", "no-such-model", "", "a/b/c", "../x"])
def test_what_is_neither_a_directory_nor_an_id_is_refused_offline(text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        resolve_model(text or str(tmp_path), {"HF_HUB_CACHE": str(tmp_path)}, refuse)


@pytest.mark.parametrize("nothing", ["", " "])
def test_no_name_is_not_the_working_directory(nothing: str) -> None:
    with pytest.raises(ModelNotFound, match="no model is named"):
        resolve_model(nothing, {}, refuse)


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        resolve_model(str(tmp_path), {}, refuse)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelNotFound, match="is a file"):
        resolve_model(str(tmp_path / "model.gguf"), {}, refuse)


def test_a_complete_model_of_the_cache_is_used_without_the_hub(tmp_path: Path) -> None:
    snapshot = write_model(cached(tmp_path, "org/some--name", "abc"))
    found = resolve_model("org/some--name", {"HF_HUB_CACHE": str(tmp_path)}, refuse)

    assert (found.id, found.directory) == ("org/some--name", snapshot)


def test_a_snapshot_given_as_a_path_is_served_under_its_hub_id(tmp_path: Path) -> None:
    snapshot = write_model(cached(tmp_path, "org/name", "abc"))

    assert resolve_model(str(snapshot), {}, refuse).id == "org/name"
    assert model_id_of(snapshot.parent) == "snapshots"


def test_an_incomplete_model_of_the_cache_is_fetched(tmp_path: Path) -> None:
    snapshot = write_sharded_model(cached(tmp_path / "cache", "org/name", "abc"))
    (snapshot / "model-00001-of-00002.safetensors").unlink()
    elsewhere = write_model(tmp_path / "fetched")
    found = resolve_model("org/name", {"HF_HUB_CACHE": str(tmp_path / "cache")}, lambda _: elsewhere)

    assert (found.id, found.directory) == ("org/name", elsewhere)


def test_the_snapshot_of_main_wins_over_a_newer_one(tmp_path: Path) -> None:
    main = write_model(cached(tmp_path, "org/name", "aaa"))
    write_model(cached(tmp_path, "org/name", "bbb", main=False))
    assert [model.directory for model in cached_models(tmp_path)] == [main]

    shutil.rmtree(main)
    assert [model.directory.name for model in cached_models(tmp_path)] == ["bbb"]


def test_a_cache_without_models_lists_none(tmp_path: Path) -> None:
    assert list(cached_models(tmp_path / "missing")) == []


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_cache_lies_where_huggingface_hub_puts_it(env: dict[str, str], expected: str) -> None:
    assert str(cache_directory(env)) == expected
