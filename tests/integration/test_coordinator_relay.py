"""Requests through a coordinator to scripted providers, over real sockets."""

import asyncio
import json

import httpx
import openai
import pytest

from coordinator.breaker import FAILURES, TOGETHER_S
from provider.protocol import Ack, Cancel, InferenceRequest
from tests.integration.coordinator_harness import (
    MODEL,
    QUICK,
    Provider,
    chat,
    coordinator,
    counts,
    events,
    piece,
    postgres,
    provider,
    slot,
    stays_silent,
    text_of,
    whole,
    with_timings,
)

__all__ = ["postgres"]


def test_openai_sdk_streams_and_does_not(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running):
            async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.api_key) as client:
                ask = [{"role": "user", "content": "Count."}]
                stream = await client.chat.completions.create(model=MODEL, messages=ask, stream=True)
                streamed = [chunk.choices[0].delta.content async for chunk in stream]
                answer = await client.chat.completions.create(model=MODEL, messages=ask)
                models = [model.id async for model in client.models.list()]
            assert streamed == ["one ", "two ", "three"]
            assert answer.choices[0].message.content == "one two three"
            assert models == [MODEL]

    asyncio.run(scene())


def test_stream_is_relayed_as_it_comes_in_openai_form(postgres: str) -> None:
    async def script(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await played.notice(request, 0, "preempted")
        await played.chunk(request, 1, "hé")
        await played.notice(request, 2, "resumed")
        await played.chunk(request, 3, "llo")
        await played.complete(request, 4)

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, script), running.client() as client:
            got = await client.post("/v1/chat/completions", json=chat(stream=True))
            quiet, spelt, wrong = [
                await client.post("/v1/chat/completions", json=chat(stream=True), headers={"X-Darkbloom-Notices": mode})
                for mode in ("off", "chunk", "loud")
            ]
        assert got.headers["content-type"].startswith("text/event-stream")
        said = [json.dumps(piece(text), ensure_ascii=False, separators=(",", ":")) for text in ("hé", "llo")]
        assert events(got.text) == [
            ": preempted",
            f"data: {said[0]}",
            ": resumed",
            f"data: {said[1]}",
            "data: [DONE]",
        ]
        assert events(quiet.text) == [f"data: {said[0]}", f"data: {said[1]}", "data: [DONE]"]
        deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events(spelt.text)[:-1]]
        assert deltas == [{}, {"content": "hé"}, {}, {"content": "llo"}]
        assert wrong.status_code == 400

    asyncio.run(scene())


def test_request_reaches_the_provider_as_the_client_sent_it(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as played, running.client() as client:
            body = {"model": MODEL, "prompt": [1, 2, 3], "ignore_eos": True, "unheard": {"of": [None]}}
            await client.post("/v1/completions", json=body)
            request: InferenceRequest = await played.hears(InferenceRequest)
        assert request.body == body
        assert request.endpoint == "/v1/completions"
        assert request.request_id.endswith(".1")
        assert request.deadline_ms == 3_600_000

    asyncio.run(scene())


def test_usage_is_recorded_once_with_the_providers_count(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running), running.client() as client:
            await client.post("/v1/chat/completions", json=chat(stream=True))
            assert await running.usage() == [("completed", None, 1, 3, 7, 3)]

    asyncio.run(scene())


def test_headers_leave_only_with_the_first_chunk(postgres: str) -> None:
    async def scene() -> None:
        go = asyncio.Event()

        async def script(played: Provider, request: InferenceRequest) -> None:
            await played.accept(request)
            await go.wait()
            await played.chunk(request, 0, "one")
            await played.complete(request, 1)

        async with (
            coordinator(postgres) as running,
            provider(running, script) as played,
            running.client() as client,
        ):
            sent = asyncio.create_task(client.send(post(client, chat(stream=True)), stream=True))
            await played.hears(InferenceRequest)
            done, _ = await asyncio.wait({sent}, timeout=0.2)
            assert not done
            go.set()
            response = await sent
            assert response.status_code == 200
            await response.aclose()

    asyncio.run(scene())


def post(client: httpx.AsyncClient, body: object) -> httpx.Request:
    return client.build_request("POST", "/v1/chat/completions", json=body)


def test_another_provider_is_tried_before_the_first_chunk(postgres: str) -> None:
    async def refuses(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await played.fail(request)

    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, refuses, "a") as first,
            provider(running, counts, "b") as second,
            running.client() as client,
        ):
            # The first is preferred: it has the lesser load.
            await second.beat(slots=[slot(running=1)])
            await asyncio.sleep(0.05)
            got = await client.post("/v1/chat/completions", json=chat(stream=True))
            assert text_of(events(got.text)) == "one two three"
            one, two = await first.hears(InferenceRequest), await second.hears(InferenceRequest)
            assert one.request_id.endswith(".1")
            assert two.request_id == one.request_id[:-1] + "2"
            assert await running.usage() == [("completed", None, 2, 3, 7, 3)]

    asyncio.run(scene())


def test_a_provider_that_dies_before_the_first_chunk_is_replaced(postgres: str) -> None:
    async def dies(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await played.notice(request, 0, "preempted")
        played.socket.transport.abort()

    async def scene() -> None:
        async with (
            coordinator(postgres, with_timings(failover_after_s=0.2)) as running,
            provider(running, dies, "a"),
            provider(running, counts, "b") as second,
            running.client() as client,
        ):
            await second.beat(slots=[slot(running=1)])
            await asyncio.sleep(0.05)
            got = await client.post("/v1/chat/completions", json=chat(stream=True))
            assert events(got.text)[0] == ": preempted"
            assert text_of(events(got.text)) == "one two three"

    asyncio.run(scene())


def test_at_most_three_attempts_and_the_last_error_is_told(postgres: str) -> None:
    async def refuses(played: Provider, request: InferenceRequest) -> None:
        await played.fail(request, code="loading", message="still loading")

    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            running.client() as client,
            provider(running, refuses, "a"),
            provider(running, refuses, "b"),
            provider(running, refuses, "c"),
            provider(running, refuses, "d"),
        ):
            got = await client.post("/v1/chat/completions", json=chat())
            assert got.status_code == 503
            assert got.json()["error"]["code"] == "loading"
            assert got.headers["retry-after"]
            assert (await running.usage())[0][:3] == ("failed", "loading", 3)

    asyncio.run(scene())


def test_a_providers_own_error_arrives_whole(postgres: str) -> None:
    async def too_long(played: Provider, request: InferenceRequest) -> None:
        detail = {
            "type": "exceed_context_size_error", "param": "messages", "n_ctx": 64, "n_prompt_tokens": 99,
            "code": "another", "message": "another",
        }  # fmt: skip
        await played.fail(request, status=400, code="long", message="no", retryable=False, detail=detail)

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, too_long) as played:
            async with running.client() as client:
                got = await client.post("/v1/chat/completions", json=chat(stream=True))
            assert got.status_code == 400
            assert got.json()["error"] == {
                "message": "no",
                "type": "exceed_context_size_error",
                "code": "long",
                "param": "messages",
                "n_ctx": 64,
                "n_prompt_tokens": 99,
            }
            assert not [each for each in played.heard if isinstance(each, Cancel)]

    asyncio.run(scene())


def test_a_provider_lost_in_mid_stream_ends_it_with_a_typed_error(postgres: str) -> None:
    async def dies(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await played.chunk(request, 0, "one ")
        await played.chunk(request, 1, "two ")
        await played.socket.close()

    async def scene() -> None:
        timings = with_timings(resume_within_s=0.3)
        async with (
            coordinator(postgres, timings) as running,
            provider(running, dies),
            provider(running, counts, "z") as z,
        ):
            await z.beat(slots=[slot(running=3)])
            await asyncio.sleep(0.05)
            async with running.client() as client:
                got = await client.post("/v1/chat/completions", json=chat(stream=True))
            stream = events(got.text)
            assert text_of(stream) == "one two "
            assert json.loads(stream[-2][6:])["error"]["code"] == "provider_lost"
            assert stream[-1] == "data: [DONE]"
            assert await running.usage() == [("failed", "provider_lost", 1, 2, None, 2)]

    asyncio.run(scene())


def test_a_silent_provider_is_lost_and_its_streams_end(postgres: str) -> None:
    async def begins(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await played.chunk(request, 0, "one ")

    async def scene() -> None:
        async with coordinator(postgres, QUICK) as running, provider(running, begins):
            async with running.client() as client:
                got = await client.post("/v1/chat/completions", json=chat(stream=True))
                late = await client.post("/v1/chat/completions", json=chat())
                fleet = (await client.get("/v1/fleet")).json()["providers"]
            assert json.loads(events(got.text)[-2][6:])["error"]["code"] == "provider_lost"
            assert late.status_code == 503
            assert late.json()["error"]["code"] in ("provider_lost", "provider_disconnected")
            assert not fleet[0]["models"][0]["routable"]

    asyncio.run(scene())


def test_a_provider_that_never_accepts_is_given_up(postgres: str) -> None:
    async def scene() -> None:
        timings = with_timings(accept_within_s=0.2)
        async with coordinator(postgres, timings) as running, provider(running, stays_silent) as played:
            async with running.client() as client:
                got = await client.post("/v1/chat/completions", json=chat())
            assert (got.status_code, got.json()["error"]["code"]) == (503, "provider_silent")
            await played.hears(Cancel)

    asyncio.run(scene())


def test_every_frame_shows_that_a_request_is_alive(postgres: str) -> None:
    async def slow(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        for seq in range(4):
            await asyncio.sleep(0.15)
            await played.notice(request, seq, "preempt-keepalive")
        await played.complete(request, 4, whole("late"))

    async def never(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)

    async def scene() -> None:
        async with coordinator(postgres, with_timings(silence_s=0.4)) as running, running.client() as client:
            async with provider(running, slow):
                got = await client.post("/v1/chat/completions", json=chat())
                assert got.json()["choices"][0]["message"]["content"] == "late"
            async with provider(running, never):
                got = await client.post("/v1/chat/completions", json=chat())
                assert (got.status_code, got.json()["error"]["code"]) == (504, "deadline_exceeded")

    asyncio.run(scene())


@pytest.mark.parametrize("started", [False, True])
def test_a_client_that_goes_away_cancels_its_request_and_nothing_else(postgres: str, started: bool) -> None:
    async def scene() -> None:
        async def script(played: Provider, request: InferenceRequest) -> None:
            if request.body.get("user") == "other":
                return await counts(played, request)
            await played.accept(request)
            if started:
                await played.chunk(request, 0, "one ")
            return None

        async with coordinator(postgres) as running, provider(running, script) as played:
            async with running.client() as client:
                sending = asyncio.create_task(client.send(post(client, chat(stream=True)), stream=True))
                request = await played.hears(InferenceRequest)
                if started:
                    await (await sending).aclose()
                else:
                    sending.cancel()
                    await asyncio.wait({sending})
            assert (await played.hears(Cancel)).request_id == request.request_id
            async with running.client() as client:
                got = await client.post("/v1/chat/completions", json=chat(user="other"))
                assert got.status_code == 200
                fleet = (await client.get("/v1/fleet/p1")).json()
            assert fleet["requests_held"] <= 1
            assert (await running.usage())[0][0] == "cancelled"

    asyncio.run(scene())


def test_received_chunks_are_acknowledged_every_64(postgres: str) -> None:
    async def long(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        for seq in range(200):
            await played.chunk(request, seq, f"{seq} ")
        await played.complete(request, 200)

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, long) as played:
            async with running.client() as client:
                got = await client.post("/v1/chat/completions", json=chat(stream=True))
            assert text_of(events(got.text)) == "".join(f"{seq} " for seq in range(200))
            await played.hears(Ack, 4)
            assert [each.seq for each in played.heard if isinstance(each, Ack)] == [63, 127, 191, 200]

    asyncio.run(scene())


def test_a_client_that_reads_too_slowly_gets_a_clean_end_and_holds_up_nobody(postgres: str) -> None:
    big = "x" * 100_000

    async def floods(played: Provider, request: InferenceRequest) -> None:
        if request.body.get("user") == "other":
            return await counts(played, request)
        await played.accept(request)
        for seq in range(400):
            await played.chunk(request, seq, big)
        return None

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, floods) as played:
            async with running.client() as client, running.client() as other:
                slow = await client.send(post(client, chat(stream=True)), stream=True)
                got = await other.post("/v1/chat/completions", json=chat(user="other"))
                assert got.status_code == 200
                stream = events((await slow.aread()).decode())
            assert json.loads(stream[-2][6:])["error"]["code"] == "client_too_slow"
            assert stream[-1] == "data: [DONE]"
            assert all(json.loads(each[6:])["choices"][0]["delta"]["content"] == big for each in stream[:-2])
            await played.hears(Cancel)

    asyncio.run(scene())


def test_a_gap_in_the_numbers_is_an_error_not_a_silent_loss(postgres: str) -> None:
    async def skips(played: Provider, request: InferenceRequest) -> None:
        await played.chunk(request, 0, "one ")
        await played.chunk(request, 0, "one again ")
        await played.chunk(request, 2, "three ")

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, skips), running.client() as client:
            got = await client.post("/v1/chat/completions", json=chat(stream=True))
        stream = events(got.text)
        assert text_of(stream) == "one "
        assert json.loads(stream[-2][6:])["error"]["code"] == "sequence_gap"

    asyncio.run(scene())


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_cannot_be_read_ends_at_once_is_cancelled_and_tried_elsewhere_where_it_may(
    postgres: str, stream: bool
) -> None:
    """The frame is the last one: nothing after it would have shown that something is missing."""
    chunk = {"type": "inference_chunk", "seq": 1, "data": {"choices": [{"logprobs": float("nan")}]}}
    last = {"type": "inference_complete", "seq": 0, "usage": {"prompt_tokens": 2**62}, "body": whole("one")}

    async def spoils(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        if stream:
            await played.chunk(request, 0, "one ")
        await played.socket.send(json.dumps({**(chunk if stream else last), "request_id": request.request_id}))

    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            running.client() as client,
            provider(running, spoils, "spoils") as played,
        ):
            got = await asyncio.wait_for(client.post("/v1/chat/completions", json=chat(stream)), 10)
            if stream:
                told = events(got.text)
                assert text_of(told) == "one "
                error = json.loads(told[-2][6:])["error"]
            else:
                error = got.json()["error"]
                assert got.status_code == 502
            assert (error["code"], error["type"]) == ("malformed_frame", "internal_error")
            await played.hears(Cancel)
            assert played.socket.close_code is None
            async with provider(running, provider_id="well", beats=False) as well:
                await well.beat(slots=[slot(running=2)])
                await asyncio.sleep(0.05)
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            await played.hears(InferenceRequest, 2)

    asyncio.run(scene())


def test_a_body_that_breaks_whatever_it_meets_is_its_senders_matter_and_a_broken_provider_everybodys(
    postgres: str,
) -> None:
    async def breaks(played: Provider, request: InferenceRequest) -> None:
        if request.body.get("top_k") is None:
            return await counts(played, request)
        if request.body["top_k"] > 1:
            await asyncio.sleep(TOGETHER_S)
        return await played.fail(request, status=500, code="engine_error", retryable=False)

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, breaks), running.client() as client:

            async def ask(**values: int) -> int:
                return (await client.post("/v1/chat/completions", json=chat(**values))).status_code

            async def opened() -> bool:
                page = (await client.get("/metrics")).text
                return 'darkbloom_breakers{state="open"} 1.0' in page

            assert [await ask(top_k=1, seed=seed) for seed in range(8)] == [500] * 8
            assert not await opened()
            assert await ask() == 200
            assert [await ask(top_k=2 + number) for number in range(FAILURES)] == [500] * FAILURES
            assert await opened()

    asyncio.run(scene())


def test_one_provider_cannot_answer_for_another(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, stays_silent, "a") as a,
            provider(running, counts, "b", models=[]) as b,
            running.client() as client,
        ):
            sending = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
            request = await a.hears(InferenceRequest)
            await b.complete(request, 0, whole("forged"))
            await asyncio.sleep(0.05)
            await a.complete(request, 0, whole("true"))
            assert (await sending).json()["choices"][0]["message"]["content"] == "true"

    asyncio.run(scene())


def test_eight_at_once_spread_over_the_fleet_each_get_their_own_words(postgres: str) -> None:
    all_here = asyncio.Barrier(8)

    async def echoes(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await all_here.wait()  # one that ended before the last was routed would not count as work
        for seq, word in enumerate(request.body["user"]):
            await asyncio.sleep(0)
            await played.chunk(request, seq, word)
        await played.complete(request, len(request.body["user"]))

    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, echoes, "a") as a,
            provider(running, echoes, "b") as b,
            running.client() as client,
        ):
            words = [f"words of {number}" for number in range(8)]
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=chat(stream=True, user=word)) for word in words)
            )
            assert [text_of(events(answer.text)) for answer in answers] == words
            shares = [sum(isinstance(each, InferenceRequest) for each in one.heard) for one in (a, b)]
            assert shares == [4, 4]

    asyncio.run(scene())
