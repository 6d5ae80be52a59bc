"""What a path takes, where a request came with another method."""

from starlette.requests import Request
from starlette.routing import Match, Route


def allowed_methods(request: Request) -> str:
    """Of all routes of the path: each answers for its own methods only."""
    fitting = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in fitting if isinstance(route, Route) for method in route.methods or ()}
    return ", ".join(sorted(methods))
