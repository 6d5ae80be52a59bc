"""The backend that computes with MLX."""

from provider.backends.mlx.lean_import import import_leanly

import_leanly()
