"""`coordinator serve | migrate | token ...`, the commands of `darkbloom-py` that run or prepare a coordinator."""

import asyncio
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from coordinator import log
from coordinator.config import DEFAULT_HOST, DEFAULT_PORT, Settings, settings
from coordinator.errors import CoordinatorError
from coordinator.keys import hashed, new_secret
from coordinator.store.records import UNLIMITED, KeyLimits, Token, TokenKind

MAX_RATE = 2**63 - 1

app = typer.Typer(
    help="Routes requests over a fleet of providers.", no_args_is_help=True, pretty_exceptions_enable=False
)
token = typer.Typer(help="The secrets of API clients, providers and operators.", no_args_is_help=True)
app.add_typer(token, name="token")

DataDir = Annotated[Path | None, typer.Option(help="Where the embedded Postgres lives. [env: DARKBLOOM_DATA_DIR]")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="A Postgres to use instead of the embedded one. [env: DARKBLOOM_DATABASE_URL]"),
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)]
TlsCert = Annotated[Path | None, typer.Option(help="A PEM file with the certificate: serve https and wss.")]
TlsKey = Annotated[Path | None, typer.Option(help="A PEM file with its private key.")]
ExitWhenClosed = Annotated[int | None, typer.Option(hidden=True, metavar="FD")]
Kind = Annotated[TokenKind, typer.Option(help="What the secret may be used for.")]
Name = Annotated[str | None, typer.Option(help="What to call it in lists; a made-up name if left out.")]
Models = Annotated[
    list[str] | None,
    typer.Option(metavar="ID[,ID...]", help="The only models that an API key may use. May be repeated."),
]
RequestsPerMinute = Annotated[int | None, typer.Option(min=1, max=MAX_RATE, help="Of an API key, at each coordinator.")]
TokensPerMinute = Annotated[
    int | None, typer.Option(min=1, max=MAX_RATE, help="Of an API key, prompts and answers, at each coordinator.")
]


@app.command()
def serve(
    host: Host = DEFAULT_HOST,
    port: Port = DEFAULT_PORT,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    exit_when_closed: ExitWhenClosed = None,
) -> None:
    """Run a coordinator in the foreground."""
    # The web server takes a second to import, which no other command needs.
    from coordinator.serve import serve as run

    with _told():
        told = settings(
            os.environ,
            data_dir=data_dir,
            database_url=database_url,
            host=host,
            port=port,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        log.to_stderr()
        run(told, exit_when_closed)


@app.command()
def migrate(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Bring the database to the schema of this version; `serve` does so by itself."""
    with _told():
        asyncio.run(_migrate(settings(os.environ, data_dir=data_dir, database_url=database_url)))
        typer.echo("The database has the schema of this version.")


@app.command()
def stop_postgres(data_dir: DataDir = None) -> None:
    """Stop the embedded Postgres that a killed coordinator has left running."""
    from coordinator.store.embedded import EmbeddedPostgres

    with _told():
        where = settings(os.environ, data_dir=data_dir).data_dir
        if not EmbeddedPostgres(where).stop_left_over():
            raise CoordinatorError(f"The Postgres of {where} runs on: somebody uses it, or something else started it.")
        typer.echo(f"No Postgres of {where} is running.")


@token.command()
def create(
    kind: Kind,
    name: Name = None,
    models: Models = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a secret and print it, once: only its hash is stored."""
    with _told():
        limits = KeyLimits(_ids(models), requests_per_minute, tokens_per_minute)
        if kind is not TokenKind.API and limits != UNLIMITED:
            raise CoordinatorError(
                "--models, --requests-per-minute and --tokens-per-minute are for keys of clients: pass --kind api."
            )
        where = settings(os.environ, data_dir=data_dir, database_url=database_url)
        secret = new_secret()
        made = asyncio.run(_create(where, kind, name or f"{kind.value}-{secrets.token_hex(3)}", secret, limits))
        typer.echo(f"Token {made.id} of kind {made.kind.value}, named {made.name}; this is shown only once:")
        typer.echo(secret)


@token.command("list")
def list_tokens(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Every token ever made, without its secret."""
    with _told():
        tokens = asyncio.run(_list(settings(os.environ, data_dir=data_dir, database_url=database_url)))
        typer.echo(f"{'ID':>4}  {'KIND':8}  {'NAME':24}  {'CREATED':16}  {'LAST USED':16}  {'LIMITS':24}  STATE")
        for each in tokens:
            typer.echo(_line(each))


@token.command()
def revoke(
    name_or_id: Annotated[str, typer.Argument(metavar="NAME_OR_ID")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke the live tokens of that name, or the one of that id; running coordinators follow within seconds."""
    with _told():
        where = settings(os.environ, data_dir=data_dir, database_url=database_url)
        revoked = asyncio.run(_revoke(where, name_or_id))
        if not revoked:
            raise CoordinatorError(f"No live token has the name or id {name_or_id!r}: see `token list`.")
        for each in revoked:
            typer.echo(f"Revoked token {each.id} of kind {each.kind.value}, named {each.name}.")


@contextmanager
def _told() -> Iterator[None]:
    """An error of ours is told in its own words, and the exit code is 1."""
    try:
        yield
    except CoordinatorError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


async def _migrate(where: Settings) -> None:
    from coordinator.store.lifetime import open_store

    async with open_store(where):
        pass


async def _create(where: Settings, kind: TokenKind, name: str, secret: str, limits: KeyLimits) -> Token:
    from coordinator.store.lifetime import open_store

    async with open_store(where) as store:
        return await store.add_token(kind, name, hashed(secret), datetime.now(UTC), limits)


async def _list(where: Settings) -> list[Token]:
    from coordinator.store.lifetime import open_store

    async with open_store(where) as store:
        return await store.tokens()


async def _revoke(where: Settings, name_or_id: str) -> list[Token]:
    from coordinator.store.lifetime import open_store

    async with open_store(where) as store:
        return await store.revoke_tokens(name_or_id, datetime.now(UTC))


def _line(each: Token) -> str:
    state = "live" if each.revoked_at is None else f"revoked {_when(each.revoked_at)}"
    columns = f"{each.id:>4}  {each.kind.value:8}  {each.name:24}"
    return f"{columns}  {_when(each.created_at):16}  {_when(each.last_used_at):16}  {_limits(each.limits):24}  {state}"


def _limits(limits: KeyLimits) -> str:
    told = [
        None if limits.requests_per_minute is None else f"{limits.requests_per_minute} requests/min",
        None if limits.tokens_per_minute is None else f"{limits.tokens_per_minute} tokens/min",
        None if limits.models is None else f"models {','.join(sorted(limits.models))}",
    ]
    return "; ".join(one for one in told if one is not None) or "none"


def _ids(models: list[str] | None) -> frozenset[str] | None:
    """Raises CoordinatorError."""
    if models is None:
        return None
    ids = frozenset(one.strip() for told in models for one in told.split(",") if one.strip())
    if not ids:
        raise CoordinatorError("--models: name at least one, or leave it out for all of them.")
    return ids


def _when(moment: datetime | None) -> str:
    return "never" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
