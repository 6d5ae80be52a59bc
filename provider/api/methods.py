"""What a path takes, where a request came with another method."""

from starlette.requests import Request
from starlette.routing import Match

METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def allowed_methods(request: Request) -> str:
    """Of all routes of the path, also those of routers within routers: each is asked whether it would take it."""
    asked = [(method, {**request.scope, "method": method}) for method in METHODS]
    routes = request.app.routes
    return ", ".join(
        method for method, scope in asked if any(route.matches(scope)[0] is Match.FULL for route in routes)
    )
