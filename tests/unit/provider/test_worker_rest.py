"""What a worker does while nothing is asked of it."""

from queue import SimpleQueue

from provider.building import build
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.pipe import LoadSpec, Stop, ToWorker
from provider.worker import wait_for_work


def test_a_worker_without_work_gives_back_what_it_kept_ready_and_readies_it_again() -> None:
    engine, _ = build(LoadSpec(backend="sim", directory=str(BUNDLED_MODEL_DIR), max_concurrent=2))
    inbox: SimpleQueue[ToWorker] = SimpleQueue()
    told = list[bool]()

    def rest(resting: bool) -> None:
        told.append(resting)
        if resting:
            inbox.put(Stop())

    engine.backend.rest = rest  # type: ignore[method-assign]
    inbox.put(Stop())
    wait_for_work(engine, inbox, rests_after_s=60)
    assert told == []
    assert isinstance(wait_for_work(engine, inbox, rests_after_s=0), Stop)
    assert told == [True, False]
