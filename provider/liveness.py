"""Whether a process that has written its name down is still there."""

import time

import psutil

CLOCK_SLACK_S = 2.0
"""A start time is told by a clock that may have been set a little meanwhile."""
POLL_S = 0.05


def lives(pid: int, started_at: float) -> bool:
    """`started_at`: seconds since 1970, as the process itself told it: another one may have the number by now.

    Not so for one that has ended and that nobody has reaped (process 1 of a container may reap nobody).
    """
    try:
        process = psutil.Process(pid)
        same: bool = abs(process.create_time() - started_at) < CLOCK_SLACK_S
        return same and str(process.status()) != psutil.STATUS_ZOMBIE
    except (psutil.Error, OverflowError, ValueError):
        return False


def await_end(pid: int, started_at: float, within_s: float) -> bool:
    """Whether it has ended within that time. It need not be a child of ours."""
    deadline = time.monotonic() + within_s
    while lives(pid, started_at):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
