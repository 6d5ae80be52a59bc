"""What loading a model requires of a machine (docs/memory.md). Integer bytes."""


def padded_weights(size_bytes: int) -> int:
    """Weights as every admission counts them: staging shards takes more than they occupy afterwards."""
    return -(-size_bytes * 6 // 5)


def required_for_load(size_bytes: int, activation_reserve_bytes: int, minimum_kv_bytes: int) -> int:
    return padded_weights(size_bytes) + activation_reserve_bytes + minimum_kv_bytes
