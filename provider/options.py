"""The options that `up`, `local` and `provider start` share, declared once."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from provider.config import BackendName
from provider.errors import ConfigError
from provider.exact.policy import Mode as ExactMode
from provider.mtp.policy import Mode

COORDINATOR_FORM = "ws://HOST:PORT/ws/provider, or wss://"
TOKEN_VARIABLE = "DARKBLOOM_PROVIDER_TOKEN"
"""Keeps a provider's token out of process lists."""

Model = Annotated[
    list[str] | None,
    typer.Option(help="A directory, a Hugging Face id, or darkbloom-demo. May be repeated.", metavar="PATH_OR_ID"),
]
DataDir = Annotated[Path | None, typer.Option(help="Where state is kept. [env: DARKBLOOM_DATA_DIR]")]
Backend = Annotated[BackendName, typer.Option(help="sim computes no tensors: for load tests.")]
ContextLength = Annotated[int | None, typer.Option(help="Token positions one chat may have.", min=2)]
KvPoolTokens = Annotated[int | None, typer.Option(help="Token positions of all resident chats of a model.", min=2)]
MtpDrafterPath = Annotated[str | None, typer.Option(help="A directory with a prediction head, for --mtp-mode on.")]
MaxConcurrent = Annotated[int | None, typer.Option(help="Chats of a model that run at once.", min=1)]
Exact = Annotated[
    ExactMode | None,
    typer.Option(
        help="A chat's bytes do not depend on who else is there: auto where it can be, on refuses to load what cannot."
    ),
]
MtpMode = Annotated[
    Mode | None, typer.Option(help="Draft with a prediction head: auto takes an embedded one; /props says why not.")
]
PreemptRamGb = Annotated[
    float | None, typer.Option(help="RAM for parked chats, GiB; only beside a GPU with memory of its own.", min=0)
]
PreemptDiskGb = Annotated[
    float | None, typer.Option(help="Disk for parked chats, GiB; by default 20, or a tenth of what is free.", min=0)
]
CoordinatorCa = Annotated[
    Path | None, typer.Option(help="A PEM file of certificates to believe wss:// by, in place of the system's.")
]
ExitWhenClosed = Annotated[int | None, typer.Option(hidden=True, metavar="FD")]


def engine_flags(
    context_length: int | None,
    kv_pool_tokens: int | None,
    mtp_drafter_path: str | None,
    max_concurrent: int | None,
    exact: str | None,
    mtp_mode: str | None,
    preempt_ram_gb: float | None,
    preempt_disk_gb: float | None,
) -> dict[str, Any]:
    """The engine flags by their provider.toml keys."""
    return {
        "context_length": context_length,
        "kv_pool_tokens": kv_pool_tokens,
        "mtp_drafter_path": mtp_drafter_path,
        "max_concurrent": max_concurrent,
        "exact": exact,
        "mtp_mode": mtp_mode,
        "preempt_ram_gb": preempt_ram_gb,
        "preempt_disk_gb": preempt_disk_gb,
    }


def check_coordinators(urls: Iterable[str]) -> None:
    """Raises ConfigError for what no coordinator can be dialled by, and for one that is named twice."""
    known: set[tuple[bool, str, int, str]] = set()
    for url in urls:
        try:
            told = parse_uri(url)
        except (InvalidURI, ValueError) as error:
            said = str(error).removeprefix(f"{url} ")
            raise ConfigError(f"--coordinator {url!r}: {said}; expected {COORDINATOR_FORM}.") from None
        if told.username is not None or not told.path:
            what = "no path is named" if told.username is None else "a token is passed as --token, not in the address"
            raise ConfigError(f"--coordinator {url!r}: {what}; expected {COORDINATOR_FORM}.")
        place = told.secure, told.host, told.port, told.path
        if place in known:
            raise ConfigError(f"--coordinator {url!r}: it is named twice; name each coordinator once.")
        known.add(place)


def check_token(token: str | None) -> str:
    """Raises ConfigError for none, and for what no header can carry."""
    if not token:
        raise ConfigError(f"no token: pass --token, or set {TOKEN_VARIABLE}.")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(
            "--token: no token of a coordinator, which is dbk_ and letters, digits, - and _ "
            "(a line break at its end, perhaps)."
        )
    return token
