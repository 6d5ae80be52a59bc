"""Every socket is an open file, of which a process may have only so many: often no more than 1024 until it asks."""

import resource
from contextlib import suppress
from dataclasses import replace

from coordinator import log
from coordinator.config import Bounds

SHARE = 0.75
"""Of the open files, for providers: the rest is for clients, Postgres and the journal."""
ALWAYS_ALLOWED = 10_240
"""macOS's OPEN_MAX: a higher limit it may refuse while it says that there is none."""


def allowed(bounds: Bounds) -> Bounds:
    """With as many open files as the system lets this process have; fewer providers where those are too few."""
    wanted = int(bounds.in_all / SHARE) + 1
    limit = _raised(wanted)
    if limit >= wanted:
        return bounds
    most = max(1, int(SHARE * limit))
    log.warning("open_files_few", allowed=limit, wanted=wanted, most_providers=most)
    return replace(bounds, in_all=most)


def _raised(wanted: int) -> int:
    """The limit that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    for limit in (most, min(most, ALWAYS_ALLOWED)):
        if limit > soft:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                return limit
    return soft
