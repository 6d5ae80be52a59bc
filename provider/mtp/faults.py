"""What the checks of a head raise at each other; `provider.errors.HeadInvalid` is what leaves this package."""

from pathlib import Path


class Fault(Exception):
    """`detail` says in plain words what is wrong with the file or directory `path`."""

    def __init__(self, detail: str, path: Path) -> None:
        # A name that a file gives may be no text that can be printed.
        self.detail = detail.encode(errors="backslashreplace").decode()
        super().__init__(self.detail)
        self.path = path


class Mismatch(Fault):
    """The head is whole, but not made for this target."""
