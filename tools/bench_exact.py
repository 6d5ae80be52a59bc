"""`darkbloom-py bench exact` from a source tree.

python -m tools.bench_exact [--json]
"""

import sys

from provider.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "exact"]
    main()
