"""Layering that import-linter cannot say: what may be named where, and what an import must not cost."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*(ROOT / "provider").rglob("*.py"), *(ROOT / "coordinator").rglob("*.py")])
GENERATORS = {"generate", "stream_generate", "batch_generate", "BatchGenerator"}


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """(module, imported name or None) for every import statement, the lazy ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def where(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_mlx_lms_generators_are_for_tests_and_tools_only() -> None:
    assert len(SOURCES) > 30
    used = [
        (where(path), module, name)
        for path in SOURCES
        for module, name in imports(path)
        if module.startswith("mlx_lm") and (module == "mlx_lm.generate" or name in GENERATORS or module == "mlx_lm")
    ]
    assert used == []


def test_only_the_mlx_backend_imports_mlx_at_module_level() -> None:
    """hardware.py and doctor.py may name the device on demand, inside a function."""
    users = {
        where(path)
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and (getattr(node, "module", None) or node.names[0].name).split(".")[0] in ("mlx", "mlx_lm")
    }
    assert users
    assert {user for user in users if not user.startswith("provider/backends/mlx/")} == set()


LIGHT = ["coordinator.app", "coordinator.cli", "provider.cli", "provider.api.app", "provider.local", "provider.start"]


@pytest.mark.parametrize("module", LIGHT)
def test_what_needs_no_tensors_does_not_load_them(module: str) -> None:
    heavy = ("mlx", "mlx_lm", "transformers", "torch")
    code = f"import sys, {module}; print([one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
