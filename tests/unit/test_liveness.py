"""Which processes count as still there."""

import os
import subprocess
import sys

import psutil

from provider.liveness import await_end, lives


def test_one_that_runs_is_there_and_another_with_its_number_is_not() -> None:
    me = psutil.Process()
    assert lives(me.pid, me.create_time())
    assert lives(me.pid, me.create_time() + 1.9)
    assert not lives(me.pid, me.create_time() - 60)


def test_one_that_has_ended_is_not_there_whether_or_not_anybody_has_reaped_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started_at = psutil.Process(child.pid).create_time()
        assert lives(child.pid, started_at)
        assert not await_end(child.pid, started_at, within_s=0)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert not lives(child.pid, started_at)
        assert await_end(child.pid, started_at, within_s=0)
    assert not lives(child.pid, started_at)


def test_what_no_process_can_be_called_is_not_there() -> None:
    assert not lives(-1, 0.0)
    assert not lives(2**40, 0.0)
    assert not lives(2**80, 0.0)
