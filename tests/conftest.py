import gc
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.soak import SOAK

# Started in the background of a shell, this process and all it starts would ignore Ctrl-C, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A fixed seed in `make test`: the same examples everywhere; `make soak` draws new ones. No deadline: machines are busy.
settings.register_profile("fixed", derandomize=not SOAK, print_blob=True, deadline=None)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    # Servers of other tests may still have threads here, and Hypothesis takes what they draw for the example's own.
    config.addinivalue_line("filterwarnings", "ignore:Do not use the `random` module inside strategies")
    # With which it prints the strategy, however large.
    config.addinivalue_line("filterwarnings", "ignore:Generating overly large repr")


def pytest_collection_finish() -> None:
    # What the tests have imported stays; every full collection would else look through it all for half a second.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo model by dtype; see tests/demo_variants.py."""
    from tests.demo_variants import VARIANTS, write_variant

    directory = tmp_path_factory.mktemp("models")
    return {name: write_variant(name, directory) for name in VARIANTS}
