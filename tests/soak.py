"""How large a property runs: whole with DARKBLOOM_SOAK=1 (`make soak`), else a fiftieth of it (`make test`)."""

import os

SOAK = os.environ.get("DARKBLOOM_SOAK") == "1"


def examples(whole: int) -> int:
    return whole if SOAK else max(10, whole // 50)
