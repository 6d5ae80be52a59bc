"""`darkbloom-py bench activation`: what a model's forward pass takes beyond weights and KV, on this machine."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from provider import options
from provider.config import data_directory, make_data_directory
from provider.errors import ConfigError, DarkbloomError, ModelUnsupported
from provider.hardware import Hardware, memory_in_use, read_hardware, read_system_memory
from provider.local_floors import LocalFloor, device_key, install
from provider.memory.caps import OS_FLOOR_BYTES
from provider.memory.floors import SHIPPED_FLOORS
from provider.memory.requirement import padded_weights, sequence_bytes
from provider.models.checkpoint import Checkpoint, read_checkpoint
from provider.models.commands import readable_bytes
from provider.models.resolve import ResolvedModel, find_model

BATCH = 8
PROMPT_TOKENS = 4096
"""Shorter ones under-measure (docs/memory.md)."""
STEPS_TOGETHER = 32
"""How many tokens the first chat still draws after the last one's prompt."""
MARGIN_DIVISOR = 4
"""A floor is the measured figure and a quarter more."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Lengths:
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes. `active_bytes`: with the model loaded and no chat. `kv_bytes`: what the chats held at most.
    `prefill_bytes` and `decode_bytes`: the most that a step with, and without, a chunk of a prompt took beyond both.
    `process_bytes`: the most that the process had grown beyond both, on a CPU, where libraries allocate beside MLX;
    0 elsewhere."""

    device: str
    batch: int
    prompt_tokens: int
    output_tokens: int
    active_bytes: int
    kv_bytes: int
    prefill_bytes: int
    decode_bytes: int
    process_bytes: int

    @property
    def activation_bytes(self) -> int:
        return max(self.prefill_bytes, self.decode_bytes, self.process_bytes)

    @property
    def floor_bytes(self) -> int:
        """With its margin, rounded up to a MiB."""
        return -(-(self.activation_bytes + self.activation_bytes // MARGIN_DIVISOR) // MIB) * MIB


def lengths_for(context: int, chunk_tokens: int) -> Lengths:
    """Prompts of 4096 tokens, or else such that prompt and answer fill the context; the answers are so long that the
    first chat still runs when the last one's prompt is done."""
    prompt = min(PROMPT_TOKENS, context)
    output = min(BATCH * -(-prompt // chunk_tokens) + STEPS_TOGETHER, context // 2)
    return Lengths(min(prompt, context - output), output)


def activation(
    model: Annotated[str, typer.Option(help="A directory, an id, or darkbloom-demo.", metavar="PATH_OR_ID")],
    install_floor: Annotated[
        bool, typer.Option("--install", help="Charge this floor for the model on this machine from now on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    data_dir: options.DataDir = None,
) -> None:
    """Measure what a model's forward pass takes beyond weights and KV: eight chats, prompts of 4096 tokens."""
    found = find_model(model)
    checkpoint, hardware = read_checkpoint(found.directory), read_hardware()
    if checkpoint.vision:
        raise ModelUnsupported(
            f"{found.id} sees images, which this measures nothing of: its floor stays the default one."
        )
    _refuse_without_room(found.id, checkpoint, hardware)
    measured = run_measurement(found.directory)
    file = _install(found, checkpoint, measured, hardware, data_directory(data_dir)) if install_floor else None
    if as_json:
        told = {"model": found.id, **asdict(measured), "activation_bytes": measured.activation_bytes}
        typer.echo(json.dumps({**told, "floor_bytes": measured.floor_bytes, "installed": file and str(file)}))
    else:
        _print(found.id, measured, file)


def run_measurement(directory: Path) -> Measured:
    """In a process of its own, so that nothing of this one is measured and a device's fault is told."""
    command = (sys.executable, "-m", "provider.bench.activation_run", str(directory))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise DarkbloomError(f"the measurement of {directory} ended with exit code {done.returncode}; see above.")
    return Measured(**json.loads(done.stdout))


def needed_bytes(checkpoint: Checkpoint) -> int:
    """Weights while they load and the chats' KV: without these the machine would only swap."""
    positions = min(checkpoint.context_length, PROMPT_TOKENS + PROMPT_TOKENS // 4)
    kv = BATCH * sequence_bytes(positions, checkpoint.state_bytes, checkpoint.kv_bytes_per_token)
    return padded_weights(checkpoint.size_bytes) + kv


def _refuse_without_room(id: str, checkpoint: Checkpoint, hardware: Hardware) -> None:
    available = read_system_memory(memory_in_use(hardware.memory_kind)).available_bytes
    needed = needed_bytes(checkpoint) + OS_FLOOR_BYTES
    if available is not None and needed > available:
        raise ConfigError(
            f"{id} cannot be measured here: that needs {readable_bytes(needed)} and {readable_bytes(available)} are "
            "available. Stop what serves models, or close other programs."
        )


def _install(
    found: ResolvedModel, checkpoint: Checkpoint, measured: Measured, hardware: Hardware, data_dir: Path
) -> Path:
    if measured.device.startswith("cpu") and memory_in_use(hardware.memory_kind) != "host":
        raise ConfigError(
            f"MLX computed on {measured.device} and not on the GPU of this machine: nothing is installed."
        )
    make_data_directory(data_dir)
    entry = LocalFloor(
        model=found.id,
        weight_digest=checkpoint.digest(),
        size_bytes=checkpoint.size_bytes,
        device=device_key(hardware),
        floor_bytes=measured.floor_bytes,
        activation_bytes=measured.activation_bytes,
        measured_on=date.today().isoformat(),
    )
    return install(data_dir, entry)


def _print(id: str, measured: Measured, file: Path | None) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{id} on {measured.device}, {measured.batch} chats, prompts of {measured.prompt_tokens} tokens")
    for name, size in (
        ("weights", measured.active_bytes),
        ("keys, values and states", measured.kv_bytes),
        ("a step with a prompt's chunk", measured.prefill_bytes),
        ("a step without", measured.decode_bytes),
        ("all the process grew by", measured.process_bytes),
        ("floor (the largest of the three and a quarter more)", measured.floor_bytes),
    ):
        console.print(f"  {name}: {readable_bytes(size)}", markup=False)
    if file is not None:
        effect = (
            "the shipped floor goes before it" if id in SHIPPED_FLOORS else "the next start of a provider charges it"
        )
        console.print(f"Installed in {file}: {effect}.", markup=False)
