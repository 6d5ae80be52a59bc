"""The model that comes with the package: small enough to ship, real enough to exercise every path.

1.46 M parameters of the Qwen3.5 architecture (6 gated-delta and 2 full-attention layers) and a prediction
head, bfloat16, trained by tools/train_demo_model.py. It counts, repeats, names capitals, adds with a think
block, and calls a weather tool.
"""

from pathlib import Path

BUNDLED_MODEL_ID = "darkbloom-demo"
BUNDLED_MODEL_DIR = Path(__file__).parent / "demo"
