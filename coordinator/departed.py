"""Providers that will not come back to their answers and are still listed: who goes first where there are too many.
Pure."""

from collections.abc import Iterator

from coordinator.ledger import Ledger, Size

MOST_OF_A_TOKEN = Size(5_000, 60_000, 2**23)
"""A model that nobody else advertises takes some four kilobytes here: of one token a quarter of a gigabyte is kept."""
MOST = Size(20_000, 240_000, 2**25)


class Departed:
    """The oldest first. `owner`: the token by which a provider had come."""

    def __init__(self, most_of_a_token: Size = MOST_OF_A_TOKEN, most: Size = MOST) -> None:
        self._most_of_a_token = most_of_a_token
        self._most = most
        self._ledger = Ledger()

    def __len__(self) -> int:
        return len(self._ledger)

    def left(self, provider_id: str, owner: int, size: Size) -> Iterator[str]:
        """Yields those for which there is no room any more, each forgotten here when it is yielded."""
        self._ledger.put(provider_id, owner, size)
        while not self._ledger.of(owner).within(self._most_of_a_token):
            yield self._dropped(self._ledger.oldest(owner))
        while not self._ledger.size.within(self._most):
            yield self._dropped(self._ledger.oldest())

    def back(self, provider_id: str) -> None:
        """It has come back, or is listed no more."""
        self._ledger.remove(provider_id)

    def _dropped(self, provider_id: str) -> str:
        self._ledger.remove(provider_id)
        return provider_id
