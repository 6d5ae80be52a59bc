"""Fixtures that several modules share for a whole session."""

from tests.integration.two_servers import apis, postgres

__all__ = ["apis", "postgres"]
