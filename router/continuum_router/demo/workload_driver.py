"""Plays a workload against a router, as streaming clients do, and notes what each turn took."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from continuum_router.demo.workload import Conversation
from continuum_shared.tasks import Supervisor

_REQUEST_TIMEOUT: Final = 60.0


class TurnFailed(Exception):
    """A request of the workload was not answered as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """One answered request: seconds to the first text, and the engine's own token counts."""

    ttft: float
    prompt_tokens: int
    cached_tokens: int
    backend: str
    route: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How the workload is sent: where to, under which model name, how many users at a time."""

    url: str
    model: str
    users: int
    answer_tokens: int
    clock: Callable[[], float]


async def play(
    client: Client, workload: Sequence[Conversation], on_turn: Callable[[TurnResult], None]
) -> None:
    """Play all conversations, `client.users` at a time; `on_turn` hears of each answered turn.

    Raises TurnFailed when a request is refused, cut or not answered in time.
    """
    timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT)
    connector = aiohttp.TCPConnector(limit=0)
    waiting = iter(workload)
    supervisor = Supervisor("workload")
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        try:
            users = [
                supervisor.spawn(f"user-{number}", _user(http, client, waiting, on_turn))
                for number in range(client.users)
            ]
            for user in asyncio.as_completed(users):
                if (failure := await user) is not None:
                    raise failure
        finally:
            await supervisor.stop()


async def _user(
    http: aiohttp.ClientSession,
    client: Client,
    waiting: Iterator[Conversation],
    on_turn: Callable[[TurnResult], None],
) -> TurnFailed | None:
    """Play conversations as long as there are any. Gives the failure that ended it early."""
    try:
        for conversation in waiting:
            messages = [{"role": "system", "content": conversation.system}]
            for said, pause in zip(conversation.turns, conversation.pauses, strict=True):
                await asyncio.sleep(pause)
                messages.append({"role": "user", "content": said})
                result, answer = await _turn(http, client, messages)
                messages.append({"role": "assistant", "content": answer})
                on_turn(result)
    except TurnFailed as failure:
        return failure
    except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
        return TurnFailed(f"{type(failure).__name__}: {failure}")
    return None


async def _turn(
    http: aiohttp.ClientSession, client: Client, messages: list[dict[str, str]]
) -> tuple[TurnResult, str]:
    body = {
        "model": client.model,
        "messages": messages,
        "max_tokens": client.answer_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_at = client.clock()
    first_at: float | None = None
    text: list[str] = []
    usage: dict[str, object] | None = None
    ended = False
    async with http.post(f"{client.url}/v1/chat/completions", json=body) as reply:
        if reply.status != 200:
            raise TurnFailed(f"status {reply.status}: {(await reply.text())[:200]}")
        async for line in reply.content:
            data = line.removeprefix(b"data: ").strip()
            if not data:
                continue
            if data == b"[DONE]":
                ended = True
                break
            chunk = json.loads(data)
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                if piece := choice["delta"].get("content"):
                    first_at = client.clock() if first_at is None else first_at
                    text.append(piece)
        backend = reply.headers.get("x-continuum-backend", "")
        route = reply.headers.get("x-continuum-route", "").partition(";")[0]
    if first_at is None or usage is None or not ended:
        raise TurnFailed("the stream ended without text, usage or its end marker")
    result = TurnResult(
        ttft=first_at - sent_at,
        prompt_tokens=_count(usage, "prompt_tokens"),
        cached_tokens=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
        backend=backend,
        route=route,
    )
    return result, "".join(text)


def _count(where: object, name: str) -> int:
    value = where.get(name) if isinstance(where, dict) else None
    if not isinstance(value, int):
        raise TurnFailed(f"usage has no {name}")
    return value
