"""Why a port cannot be listened on, in words that say what to do."""

import errno
import socket

import psutil


def why_not(host: str, port: int, error: OSError) -> str:
    """`error`: what came of looking the host up, or of binding to it."""
    where = f"cannot listen on {host}:{port}"
    if isinstance(error, socket.gaierror):
        return f"{where}: the host has no address ({error.strerror}); pass an address of this machine as --host."
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where}: {_holder(port)} listens there; end it, wait until it has ended, or pass another --port."
        case errno.EADDRNOTAVAIL:
            return f"{where}: that is no address of this machine; pass another --host (0.0.0.0: all of them)."
        case errno.EACCES | errno.EPERM:
            return f"{where}: not permitted ({error.strerror}); pass a --port above 1023."
        case _:
            return f"{where} ({error.strerror or error}): pass another --host or --port."


def _holder(port: int) -> str:
    """As far as the system tells us, which of other users' processes it may not."""
    try:
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None:
                return f"{psutil.Process(one.pid).name()} (pid {one.pid})"
    except (psutil.Error, OSError, RuntimeError):
        pass
    return "another program"
