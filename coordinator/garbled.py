"""Text frames that are no UTF-8: the web server closes their connection with 1007 and logs a traceback each time.

Here that is one line now and then.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator import log
from coordinator.occasional import Occasional

COMPLAINT = "Invalid UTF-8"
_SERVER = logging.getLogger("uvicorn.error")


@contextmanager
def told_now_and_then() -> Iterator[None]:
    tersely = _Tersely()
    _SERVER.addFilter(tersely)
    try:
        yield
    finally:
        _SERVER.removeFilter(tersely)


class _Tersely(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._occasional = Occasional()

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(COMPLAINT):
            times = self._occasional.happened(COMPLAINT, time.monotonic())
            if times is not None:
                log.warning("frame_not_utf8", times=times)
            return False
        return True
