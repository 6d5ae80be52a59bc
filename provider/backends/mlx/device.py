"""The device MLX would use here. Run as a module, it also computes something on it and says so in JSON."""

import json
import sys

import mlx.core as mx


def device_name() -> str:
    device = mx.default_device()
    name = mx.device_info(device).get("device_name", "unknown")
    return f"{device.type.name}: {name}"


def tiny_product() -> float:
    """The sum of a matrix product whose value is known: 8 x 8 x 8 ones."""
    ones = mx.ones((8, 8))
    total = (ones @ ones).sum().item()
    assert isinstance(total, float)
    return total


if __name__ == "__main__":
    json.dump({"device": device_name(), "sum": tiny_product()}, sys.stdout)
