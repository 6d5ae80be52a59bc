"""Builds that have failed their self-test here. Their marks are durable: what once computed nonsense is not served
again while this process lives, however late somebody comes who had fetched it before."""

import logging

log = logging.getLogger(__name__)


class Retirement:
    """Owner: residency. A mark without a digest covers every build of its model: nobody knows which one it was."""

    def __init__(self) -> None:
        self._marks: dict[str, set[str | None]] = {}

    def mark(self, model_id: str, digest: str | None) -> None:
        self._marks.setdefault(model_id, set()).add(digest)
        log.error("model_retired model=%s digest=%s", model_id, digest)

    def knows(self, model_id: str) -> bool:
        return model_id in self._marks

    def covers(self, model_id: str, digest: str | None) -> bool:
        """`digest` None: of that build nobody knows either."""
        marks = self._marks.get(model_id, set())
        return bool(marks) and (digest is None or None in marks or digest in marks)
