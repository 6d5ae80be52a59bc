"""mlx-lm without the tokenizers and downloads that its package brings.

Importing anything of mlx_lm runs the package's `__init__`, and that imports transformers and huggingface_hub: most of
the time that a worker takes to start, for names which nobody here uses (tokenizers are provider.models.tokenizer's, and
a model is a directory). While `__init__` runs, stand-ins take their place; before and afterwards both packages are
what they are.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SPARED = ("transformers", "transformers.tokenization_utils_base", "huggingface_hub")


class _Absent:
    """Any class or function of a package that was not imported."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ImportError(
            f"{type(self).__name__} was not imported with mlx-lm: import its package before the engine's modules"
        )

    @classmethod
    def register(cls, *_: Any, **__: Any) -> None:
        """As mlx-lm does with a tokenizer of its own."""


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> type[_Absent]:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Absent,), {})


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """What is imported already is not hidden."""
    added = {name: _StandIn(name) for name in SPARED if name.partition(".")[0] not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name, stand_in in added.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


class _Lean(Loader):
    """Loads as `usual` does, but with the stand-ins in place."""

    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _stand_ins():
            self._usual.exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname == "mlx_lm" else None
        if found is not None and found.loader is not None:
            found.loader = _Lean(found.loader)
        return found


def import_leanly() -> None:
    """From now on, in this process. Idempotent."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
