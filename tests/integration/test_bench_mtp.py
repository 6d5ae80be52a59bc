"""`darkbloom-py bench mtp` with real servers: both sides answer, and the one that should draft does."""

import json
import shutil
from pathlib import Path

from provider.models.bundled import BUNDLED_MODEL_DIR
from tests.integration.processes import run

SMALL = ("--streams", "2", "--requests", "1", "--rounds", "1", "--output-tokens", "24")


def test_both_sides_are_measured_and_the_drafts_are_counted(tmp_path: Path) -> None:
    done = run(tmp_path / "log", "bench", "mtp", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (gain,) = found["streams"]

    assert (found["model"], found["rounds"], gain["streams"]) == ("darkbloom-demo", 1, 2)
    assert gain["ratios"] == [gain["drafting_tokens_per_s"] / gain["plain_tokens_per_s"]]
    assert gain["drafted"][0] > 0
    assert len(gain["acceptance"]) <= 2
    assert gain["acceptance"][0] > 0.5  # of counting, which the bundled model foresees well
    assert gain["verify_ms"] > 0


def test_a_model_that_does_not_draft_is_one_clear_line(tmp_path: Path) -> None:
    model = shutil.copytree(BUNDLED_MODEL_DIR, tmp_path / "model")
    (model / "mtp-00001.safetensors").unlink()
    done = run(tmp_path / "log", "bench", "mtp", *SMALL, "--model", str(model))

    assert done.returncode == 1
    assert done.stderr.endswith(
        f"{model} does not draft here: inline_artifact_invalid; `darkbloom-py doctor` says more.\n"
    )
