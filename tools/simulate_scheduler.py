"""Traces of chats against the policies of parking, in virtual time (docs/scheduling.md).

python -m tools.simulate_scheduler [--chats 40] [--device m3-max] [--json]
"""

import argparse
import json

from provider.backends.sim_timing import DEVICES
from provider.bench.simulated import rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--device", choices=list(DEVICES), default="m3-max")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    found = list(rows(told.chats, DEVICES[told.device]))
    if told.json:
        print(json.dumps({"device": told.device, "runs": found}))
        return
    for row in found:
        print(" | ".join(str(value) for value in row.values()))


if __name__ == "__main__":
    main()
