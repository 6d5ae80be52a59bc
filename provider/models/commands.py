"""`darkbloom-py models`: what is on disk, what a checkpoint is, and fetching one."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer
from rich.console import Console
from rich.table import Table

from provider.errors import ModelError
from provider.memory.caps import GIB
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.footprint import read_footprint
from provider.models.hub import download
from provider.models.hub_cache import cache_directory, cached_models
from provider.models.inspection import Inspection, inspect_model
from provider.models.resolve import ResolvedModel, find_model, resolve_model
from provider.mtp.head import ExternalHead, InlineHead
from provider.mtp.policy import Off, is_killed
from provider.mtp.probe import Probe, probe
from provider.mtp.verdict import Verdict, judge

app = typer.Typer(help="What is on disk, what a checkpoint is, and fetching one.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """The bundled model, and those of the Hugging Face cache."""
    found = [describe(model) for model in models_on_disk(os.environ)]
    if as_json:
        typer.echo(json.dumps({"models": found}))
    else:
        Console().print(_list_table(found))


@app.command("inspect")
def inspect(path: Annotated[str, typer.Argument(metavar="PATH_OR_ID")], as_json: Json = False) -> None:
    """What a checkpoint is, read from its files without loading it. Exit 1 when it is broken."""
    try:
        facts = describe(find_model(path))
    except ModelError as error:
        facts = {"id": path, "path": None, "supported": False, "reason": None, "problems": [str(error)]}
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _print_facts(facts)
    if facts["problems"]:
        raise typer.Exit(1)


@app.command("pull")
def pull(model_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Download a model of the Hugging Face hub, unless all of it is here. Prints its directory. Exit 1 when it cannot
    be had, or is broken."""
    model = resolve_model(model_id, fetch=_fetch)
    facts = describe(model)
    for said in (facts["reason"], *facts["problems"]):
        if said:
            typer.echo(f"{model.id} cannot be served: {said}", err=True)
    typer.echo(model.directory)
    if facts["problems"]:
        raise typer.Exit(1)


def _fetch(model_id: str) -> Path:
    """With a bar for each file on a terminal (the hub's own), and these lines anywhere."""
    typer.echo(f"downloading {model_id}", err=True)
    directory = download(model_id)
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    typer.echo(f"downloaded {model_id}: {readable_bytes(size)}", err=True)
    return directory


def models_on_disk(env: Mapping[str, str]) -> Iterator[ResolvedModel]:
    yield ResolvedModel(BUNDLED_MODEL_ID, BUNDLED_MODEL_DIR)
    for cached in cached_models(cache_directory(env)):
        yield ResolvedModel(cached.id, cached.directory)


def describe(model: ResolvedModel) -> dict[str, Any]:
    """Everything that can be said of it; null where a fault or a foreign family leaves something unknown."""
    place = {"id": model.id, "path": str(model.directory)}
    try:
        return {**place, **_facts(model.id, inspect_model(model.directory))}
    except ModelError as error:
        mtp = _mtp(model.directory, probe(model.directory))
        return {**place, "mtp": mtp, "supported": False, "reason": None, "problems": [str(error)]}


def _facts(id: str, found: Inspection) -> dict[str, Any]:
    layers, needs = found.architecture, read_footprint(id, found)
    machine = None if needs is None else needs.machine
    return {
        "family": found.family,
        "model_type": found.config.get("model_type"),
        "context_length": found.context_length,
        "vocab_size": found.vocab_size,
        "dtype": found.dtype,
        "quantization": found.quantization,
        "size_bytes": found.size_bytes,
        "memory_required_bytes": None if needs is None else needs.required_bytes,
        "smallest_machine_gb": None if machine is None else machine.size_gib,
        "tight": None if machine is None else machine.tight,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "state_bytes": found.state_bytes,
        "full_attention_layers": None if layers is None else layers.full_layers,
        "linear_attention_layers": None if layers is None else layers.linear_layers,
        "tie_word_embeddings": None if layers is None else layers.tie_word_embeddings,
        "eos_token_ids": sorted(found.eos_token_ids),
        "vision": found.vision,
        "mtp": _mtp(found.directory, found.mtp),
        "supported": found.unsupported is None and not found.problems,
        "reason": found.unsupported,
        "problems": list(found.problems),
    }


def _mtp(directory: Path, found: Probe) -> dict[str, Any]:
    """Under the default mode, and this environment's kill switch."""
    verdict = judge(directory, found, killed=is_killed(os.environ.get("DARKBLOOM_MTP")))
    return {
        "declared": verdict.declaration.value,
        "active": verdict.active,
        "reason": verdict.reason,
        "detail": verdict.detail,
        "head": _head(verdict),
    }


def _head(verdict: Verdict) -> dict[str, Any] | None:
    match verdict.choice:
        case Off():
            return None
        case InlineHead() | ExternalHead() as head:
            return {
                "block_size": head.block_size,
                "tensors": len(head.tensors),
                "packed_modules": len(head.packings),
                "size_bytes": head.payload_bytes,
                "kv_bytes_per_token": head.kv_bytes_per_token,
            }
        case _:
            assert_never(verdict.choice)


def _list_table(found: list[dict[str, Any]]) -> Table:
    table = Table("model", "family", "weights", "context", "served", box=None, pad_edge=False)
    for facts in found:
        table.add_row(
            facts["id"],
            facts.get("family") or "?",
            _shown("size_bytes", facts.get("size_bytes")),
            str(facts.get("context_length") or "?"),
            "yes" if facts["supported"] else "no",
        )
    return table


def _print_facts(facts: Mapping[str, Any]) -> None:
    table = Table("", "", box=None, pad_edge=False, show_header=False)
    table.columns[1].overflow = "fold"
    for name, value in facts.items():
        if name not in ("problems", "reason"):
            table.add_row(name.removesuffix("_bytes").removesuffix("_gb").replace("_", " "), _shown(name, value))
    console = Console()
    console.print(table)
    for said in (facts["reason"], *facts["problems"]):
        if said:
            console.print(said, style="red", markup=False, soft_wrap=True)


def _shown(name: str, value: Any) -> str:
    """For people: bytes in a unit that can be read, and words for what is not a string."""
    match value:
        case None:
            return "unknown" if name != "quantization" else "none"
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith(("_bytes", "_per_token")):
            return readable_bytes(value)
        case int() if name.endswith("_gb"):
            return f"{value} GiB"
        case dict():
            return _shown_mtp(value)
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _shown_mtp(mtp: Mapping[str, Any]) -> str:
    if not mtp["active"]:
        return f"{mtp['declared']}; off ({mtp['reason']}): {mtp['detail']}"
    head = mtp["head"]
    return f"{mtp['declared']}; on, up to {head['block_size'] - 1} drafts a round, {readable_bytes(head['size_bytes'])}"


def readable_bytes(count: int) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
