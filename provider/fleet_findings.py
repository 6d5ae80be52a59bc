"""Why a provider gets no traffic: what each coordinator says of it, as doctor's findings."""

from collections.abc import Iterator

from provider.findings import Finding, Status
from provider.running import Linked, Unroutable

BUSY = frozenset({"queue_full", "no_kv_room"})
"""It has as much to do as it can take."""
ROUTABLE_FIX = "`POST /v1/route` and `GET /v1/fleet` on the coordinator say more."
ROUTABLE_FIXES = {
    "memory_cap": "Free memory here, or serve a smaller model: see whether it fits, above.",
    "no_kv_budget": "Restart the provider with more memory free, or serve fewer models.",
    "provider_draining": "Nothing needs doing where the provider is ending; else an operator has ordered it.",
    "provider_suspect": "Look at the network between the two: heartbeats come late.",
    "slot_failed": "`provider status` and the log say why. A worker that keeps ending is tried again by itself, after "
    "minutes; a model that exact mode refuses is loaded once that mode is changed, or by hand.",
    "capacity_cooldown": "Nothing needs doing: it is tried again shortly. More memory for keys and values helps.",
    "circuit_open": "Requests kept failing here: the provider's log says why. It is tried again shortly.",
}


def judge_links(links: tuple[Linked, ...]) -> Iterator[Finding]:
    """Of a coordinator that says nothing of models nothing is said either."""
    for link in links:
        if not link.connected:
            fix = "Look at the coordinator and the network between the two; the provider dials again by itself."
            message = f"{link.url} is not connected{f': {link.reason}' if link.reason else ''}."
            yield Finding("coordinator link", Status.WARN, message, fix)
            continue
        yield from map(_unroutable, link.unroutable)
        if link.routable:
            yield Finding("routable", Status.PASS, f"{link.url} sends requests for {', '.join(link.routable)}.")


def _unroutable(one: Unroutable) -> Finding:
    detail = f" ({one.detail})" if one.detail else ""
    if one.reason in BUSY:
        message = f"{one.url} sends no more requests for {one.model} for the moment: {one.reason}{detail}."
        return Finding("routable", Status.PASS, message)
    message = f"{one.url} sends no requests for {one.model}: {one.reason}{detail}."
    return Finding("routable", Status.WARN, message, ROUTABLE_FIXES.get(one.reason, ROUTABLE_FIX))
