"""How long a device would take for a step: a roofline over the bytes moved and the operations done.

A step takes as long as the slower of the two, and what launching it costs: `max(bytes / bandwidth, flops / compute) +
overhead`. Vendors' peaks go in, so what comes out is a bound that a real engine approaches and does not pass. Three
simplifications: every weight is read and used (a mixture of experts is cheaper than this), a weight is two bytes (the
prefill of a 4-bit model does more operations per byte), and activations move for nothing.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provider.backends.base import BackendFacts
from provider.errors import ConfigError

DEVICE_VARIABLE = "DARKBLOOM_SIM_DEVICE"

FLOPS_PER_WEIGHT_BYTE = 1
"""A multiplication and an addition for each weight of two bytes, per token."""

FLOPS_PER_KV_BYTE = 8
"""The same for each key and value, for each of the eight query heads that share it (Qwen3.5's grouping)."""

STATE_PASSES = 2
"""Recurrent state is read and written by every step."""


@dataclass(frozen=True, slots=True)
class Device:
    """Bytes and operations per second at the memory's and the arithmetic units' peak."""

    name: str
    bandwidth_bytes_per_s: float
    flops_per_s: float
    overhead_s: float


# Peaks: Apple's and NVIDIA's data sheets (M3 Max with 40 GPU cores, FP32; H100 SXM, dense BF16); the CPU is two
# cores with a plain BLAS. Overheads are what MLX takes to launch a small model's step, rounded.
DEVICES = {
    one.name: one
    for one in (
        Device("m3-max", 400e9, 14.2e12, 1e-3),
        Device("h100", 3.35e12, 989e12, 5e-4),
        Device("slow-cpu", 20e9, 5e9, 2e-3),
        # For load tests: of no machine, but the same in every step.
        Device("instant", math.inf, math.inf, 0.0),
        Device("paced", math.inf, math.inf, 0.05),
    )
}


def decode_s(device: Device, facts: BackendFacts, lengths: Sequence[int]) -> float:
    """One decode step. `lengths`: positions each row holds once its token is in."""
    kv_bytes = sum(lengths) * facts.kv_bytes_per_token
    state_bytes = len(lengths) * STATE_PASSES * facts.state_bytes
    flops = len(lengths) * facts.weight_bytes * FLOPS_PER_WEIGHT_BYTE + kv_bytes * FLOPS_PER_KV_BYTE
    return _step_s(device, facts.weight_bytes + kv_bytes + state_bytes, flops)


def prefill_s(device: Device, facts: BackendFacts, held: int, count: int) -> float:
    """A chunk of `count` tokens behind `held` positions; each attends to all before it and to itself."""
    kv_bytes = (held + count) * facts.kv_bytes_per_token
    attended = count * held + count * (count + 1) // 2
    flops = count * facts.weight_bytes * FLOPS_PER_WEIGHT_BYTE
    flops += attended * facts.kv_bytes_per_token * FLOPS_PER_KV_BYTE
    return _step_s(device, facts.weight_bytes + kv_bytes + STATE_PASSES * facts.state_bytes, flops)


def _step_s(device: Device, moved_bytes: int, flops: int) -> float:
    return max(moved_bytes / device.bandwidth_bytes_per_s, flops / device.flops_per_s) + device.overhead_s


def device_named_in(env: Mapping[str, str]) -> Device | None:
    """The device to imitate; None, where the variable is unset or empty: steps take no time."""
    name = env.get(DEVICE_VARIABLE)
    if not name:
        return None
    if name not in DEVICES:
        raise ConfigError(f"{DEVICE_VARIABLE} must be one of {', '.join(DEVICES)}, not {name!r}.")
    return DEVICES[name]


class Clock(Protocol):
    """Seconds since some moment, and a way to let them pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class WallClock:
    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class LeadingClock:
    """Sleeps by running ahead of the wall, so that nothing blocks; whoever drives it waits for `lead_s` elsewhere."""

    def __init__(self) -> None:
        self.lead_s = 0.0

    def now(self) -> float:
        return time.monotonic() + self.lead_s

    def sleep(self, seconds: float) -> None:
        self.lead_s += seconds

    def settle(self) -> float:
        """What is still to be waited; from here on the clock is the wall's again, once that has been."""
        lead_s, self.lead_s = self.lead_s, 0.0
        return lead_s
