"""A grammar that takes long to compile holds up its own request, and nobody else."""

from queue import SimpleQueue
from threading import Event

from provider.errors import GrammarError
from provider.generation import GenerationRequest, Sampling
from provider.preparing import THREADS, Prepared, Preparing


def request(id: str, grammar: str) -> GenerationRequest:
    return GenerationRequest(request_id=id, prompt=[1], max_tokens=1, sampling=Sampling(grammar=grammar))


def test_a_slow_grammar_is_waited_for_beside_the_others() -> None:
    told: SimpleQueue[Prepared] = SimpleQueue()
    goes_on = Event()

    def prepare(sampling: Sampling) -> None:
        if sampling.grammar == "slow":
            goes_on.wait(30)
        elif sampling.grammar == "bad":
            raise GrammarError("it is bad")
        elif sampling.grammar == "odd":
            raise ValueError("unforeseen")

    preparing = Preparing(prepare, told.put)
    preparing.begin(request("slow", "slow"))
    for id in ("good", "bad", "odd"):
        preparing.begin(request(id, id))
    assert THREADS > 1
    said = {one.request_id: one.failure for one in (told.get(timeout=30) for _ in range(3))}
    assert said == {"good": None, "bad": "it is bad", "odd": "ValueError: unforeseen"}
    held = preparing.take("good")
    assert held is not None
    assert held.request_id == "good"
    assert preparing.take("good") is None
    preparing.drop("slow")
    goes_on.set()
    assert told.get(timeout=30).request_id == "slow"
    assert preparing.take("slow") is None
