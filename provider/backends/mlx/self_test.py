"""A few greedy tokens at load: what this machine's MLX cannot compute, or computes wrongly, is found before a request
does."""

from pathlib import Path

import mlx.core as mx

from provider.backends.mlx.forward import Forward
from provider.backends.mlx.loading import misfit
from provider.errors import ModelUnsupported, SelfTestFailed

PROMPT = (0, 1, 2, 3)
TOKENS = 3


def self_test(forward: Forward, directory: Path) -> None:
    """Raises ModelUnsupported for an operation MLX lacks, SelfTestFailed for logits that are not finite numbers, and
    ModelError for a config that cannot be computed with."""
    forward.open("")
    try:
        logits, _ = forward.logits_after("", PROMPT)
        for _ in range(TOKENS):
            if not bool(mx.isfinite(logits).all()):
                raise SelfTestFailed(
                    f"{directory}: its logits are not finite numbers on this machine: download it again, or serve "
                    "another build of it."
                )
            (done,) = forward.decode([""], mx.argmax(logits, axis=-1), [1])
            logits = done.logits
    except RuntimeError as error:
        device = mx.default_device().type.name
        raise ModelUnsupported(f"{directory}: MLX cannot run it on this machine's {device}: {error}") from error
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise misfit(directory, error) from error
    finally:
        forward.release("")
