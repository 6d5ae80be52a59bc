"""Everything a provider waits for outside itself, held until the test opens it, in whatever order it likes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Gate:
    """`open` is called with what comes of it: a value, or an exception to be raised."""

    name: str
    open: Callable[[Any], None]


class Gates:
    def __init__(self) -> None:
        self._pending: list[Gate] = []
        self._held = True

    @property
    def names(self) -> list[str]:
        return [one.name for one in self._pending]

    def find(self, name: str) -> Gate:
        """The oldest whose name begins so."""
        found = next((one for one in self._pending if one.name.startswith(name)), None)
        assert found is not None, f"nobody waits for {name!r}; pending: {self.names}"
        return found

    def hold(self, name: str, act: Callable[[Any], None]) -> Gate:
        gate = Gate(name, act)
        self._pending.append(gate)
        if not self._held:
            asyncio.get_running_loop().call_soon(self._open_at_end, gate)
        return gate

    def release(self) -> None:
        """Whoever waits, or comes to wait, goes on."""
        self._held = False
        for gate in list(self._pending):
            self._open_at_end(gate)

    def _open_at_end(self, gate: Gate) -> None:
        if gate in self._pending:
            self._pending.remove(gate)
            gate.open(None)

    def open(self, name: str, result: Any = None) -> None:
        gate = self.find(name)
        self._pending.remove(gate)
        gate.open(result)

    async def wait(self, name: str) -> Any:
        """What the test opens it with."""
        opened = asyncio.get_running_loop().create_future()
        gate = self.hold(name, lambda result: _settle(opened, result))
        try:
            return await opened
        finally:
            self.forget(gate)

    def forget(self, gate: Gate | None) -> None:
        if gate in self._pending:
            self._pending.remove(gate)


def _settle(opened: "asyncio.Future[Any]", result: Any) -> None:
    if opened.done():
        return
    if isinstance(result, BaseException):
        opened.set_exception(result)
    else:
        opened.set_result(result)
