"""The device MLX would use here. Run as a module, it also computes something on it and says so in JSON."""

import json
import os
import sys
from importlib.metadata import version

import mlx.core as mx


def device_name() -> str:
    """`cpu: AMD EPYC`, `gpu: Apple M2 Max`, `gpu: NVIDIA H200`."""
    device = mx.default_device()
    name = mx.device_info(device).get("device_name", "unknown")
    return f"{device.type.name}: {name}"


def running_on() -> str:
    """What decides how long a pass takes, and how its sums are rounded: the device, and what computes on it."""
    cores = f" with {os.cpu_count()} cores" if on_the_cpu() else ""
    return f"{device_name()}{cores}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"


def device_memory() -> tuple[int | None, int | None]:
    """Total and free bytes of the device; MLX tells them for CUDA, and the total for Metal."""
    info = mx.device_info(mx.default_device())
    return _integer(info.get("total_memory", info.get("memory_size"))), _integer(info.get("free_memory"))


def reset_peak() -> None:
    """From here on the peak is that of what follows."""
    mx.reset_peak_memory()


def wired_limit(size_bytes: int) -> int:
    """How much of it may be kept from being paged out: never more than the system recommends for its GPU (Metal)."""
    recommended = _integer(mx.device_info(mx.default_device()).get("max_recommended_working_set_size"))
    return size_bytes if recommended is None else min(size_bytes, recommended)


def wire(size_bytes: int) -> None:
    """MLX wires memory on Metal alone; elsewhere there is nothing to do."""
    if mx.metal.is_available():
        mx.set_wired_limit(size_bytes)


def tiny_product() -> float:
    """The sum of a matrix product whose value is known: 8 x 8 x 8 ones."""
    ones = mx.ones((8, 8))
    total = (ones @ ones).sum().item()
    assert isinstance(total, float)
    return total


def on_the_cpu() -> bool:
    return bool(mx.default_device() == mx.Device(mx.cpu))


def _integer(value: str | int | None) -> int | None:
    return value if isinstance(value, int) else None


if __name__ == "__main__":
    product = tiny_product()
    total, free = device_memory()
    json.dump({"device": device_name(), "sum": product, "total_bytes": total, "free_bytes": free}, sys.stdout)
