"""What Python's collector of garbage is spared."""

import gc


def freeze() -> None:
    """To be called once a process has what it will keep. A full collection goes through every object of every imported
    library, 40 ms for 130 000 of them, in which nothing is computed and nothing is sent; from here on it goes only
    through what has come since."""
    gc.collect()
    gc.freeze()
