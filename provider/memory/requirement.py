"""What loading a model requires of a machine (docs/memory.md). Integer bytes."""

from dataclasses import dataclass


def padded_weights(size_bytes: int) -> int:
    """Weights as every admission counts them: staging shards takes more than they occupy afterwards."""
    return -(-size_bytes * 6 // 5)


def sequence_bytes(positions: int, state_bytes: int, kv_bytes_per_token: int) -> int:
    """A hybrid's state is fixed per sequence, and not small."""
    return state_bytes + positions * kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class Charge:
    """The weights a load is charged with, at every site alike: the model's, and those of an assistant (a prediction
    head that is not inside the model's files)."""

    size_bytes: int
    assistant_bytes: int = 0

    @property
    def padded_bytes(self) -> int:
        return padded_weights(self.size_bytes) + padded_weights(self.assistant_bytes)

    @property
    def target_only(self) -> "Charge":
        return Charge(self.size_bytes)


def required_for_load(charge: Charge, activation_reserve_bytes: int, minimum_kv_bytes: int) -> int:
    return charge.padded_bytes + activation_reserve_bytes + minimum_kv_bytes
