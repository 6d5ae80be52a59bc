"""Position-keyed randomness: a draw depends on (seed, sequence index, output position) and on nothing else."""

from hashlib import blake2b

_MASK = 2**64 - 1


def uniform(seed: int, index: int, position: int) -> float:
    """A number in (0, 1) with 53 random bits: fold(seed, index, position) through BLAKE2b.

    A counter-based draw, so that neither neighbours nor the number of draws before it can change it.
    """
    key = b"".join((value & _MASK).to_bytes(8, "little") for value in (seed, index, position))
    bits = int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11
    return (bits + 0.5) / 2**53
