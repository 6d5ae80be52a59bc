"""What the checks of a head raise at each other; `provider.errors.HeadInvalid` is what leaves this package."""

from pathlib import Path


class Fault(Exception):
    """`detail` says in plain words what is wrong with the file or directory `path`."""

    def __init__(self, detail: str, path: Path) -> None:
        super().__init__(detail)
        self.detail = detail
        self.path = path


class Mismatch(Fault):
    """The head is whole, but not made for this target."""
