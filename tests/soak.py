"""How large a property runs: whole with DARKBLOOM_SOAK=1 (`make soak`), else a fiftieth or less of it (`make test`)."""

import os

SOAK = os.environ.get("DARKBLOOM_SOAK") == "1"


def examples(whole: int, share: int = 50) -> int:
    return whole if SOAK else max(10, whole // share)
