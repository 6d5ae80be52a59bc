"""The certificate that a coordinator serves: read at its start, and again when its files have changed.

Certificates that renew themselves are written anew every two or three months. New connections get the new one; those
that there are go on.
"""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from coordinator import log
from coordinator.errors import BadConfiguration

LOOK_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the certificate with those that vouch for it, and its private key."""

    certificate: Path
    key: Path

    def loaded(self) -> ssl.SSLContext:
        """Raises BadConfiguration, which names the file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=self._encrypted)
        except OSError as error:
            raise BadConfiguration(self._wrong(error)) from error
        return context

    def _encrypted(self) -> NoReturn:
        raise BadConfiguration(f"--tls-key {self.key}: it asks for a password; pass a key without one.")

    def _wrong(self, error: OSError) -> str:
        """A file of both is read by OpenSSL, which does not say which one it is that it does not like."""
        for flag, file in (("--tls-cert", self.certificate), ("--tls-key", self.key)):
            try:
                file.read_bytes()
            except OSError as unread:
                return f"{flag} {file}: it cannot be read ({unread.strerror})."
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.certificate)
        except OSError:
            return f"--tls-cert {self.certificate}: not a certificate in PEM ({_said(error)})."
        mismatch = isinstance(error, ssl.SSLError) and "MISMATCH" in (error.reason or "")
        what = f"not the key of the certificate {self.certificate}" if mismatch else "not a private key in PEM"
        return f"--tls-key {self.key}: {what} ({_said(error)})."


class Certificate:
    """Owned by the event loop. Raises BadConfiguration."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._seen = _stamps(tls)
        self._newest = tls.loaded()
        self.context = tls.loaded()
        """For the server, as long as it listens: each connection that begins is given the newest."""
        self.context.sni_callback = self._choose  # called whether or not the client has named a server

    async def keep(self, asked: asyncio.Event, every_s: float = LOOK_EVERY_S) -> None:
        """Reads the files when they are others than before, or when it is asked to. For ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await asked.wait()
            stamps = _stamps(self._tls)
            if asked.is_set() or stamps != self._seen:
                self._seen = stamps
                self._renew()
            asked.clear()

    def _renew(self) -> None:
        """A pair that is none is told, and the one before serves on."""
        files = {"certificate": str(self._tls.certificate), "key": str(self._tls.key)}
        try:
            self._newest = self._tls.loaded()
        except BadConfiguration as error:
            log.warning("tls_not_renewed", reason=str(error), **files)
        else:
            log.event("tls_renewed", **files)

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def _stamps(tls: Tls) -> list[tuple[int, int, int] | None]:
    """What differs once a file is another one, or has been written to."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in (tls.certificate, tls.key):
        try:
            now = file.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((now.st_mtime_ns, now.st_size, now.st_ino))
    return stamps


def _said(error: OSError) -> str:
    return str((error.reason if isinstance(error, ssl.SSLError) else error.strerror) or error)
