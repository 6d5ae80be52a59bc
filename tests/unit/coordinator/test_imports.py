import subprocess
import sys


def test_the_application_is_light_to_import() -> None:
    heavy = "('mlx', 'transformers', 'alembic')"
    code = f"import sys, coordinator.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
