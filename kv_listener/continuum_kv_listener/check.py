"""``continuum-kv-listener --check``: tries each endpoint once and prints a table.

First the listener's own address, certificate and token (``check_serving``), then one row a source
and endpoint: what was tried, whether it worked, and what to do if not. Events of engines are not
consumed: the subscriber is dropped as soon as it has connected.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TextIO

import aiohttp
import zmq

from continuum_kv_listener.assemble import attributor, engine_endpoints
from continuum_kv_listener.check_serving import try_serving, wall_clock
from continuum_kv_listener.check_table import (
    ENGINE_HINTS,
    HEALTH_HINT,
    REPLAY_HINTS,
    Outcome,
    next_step,
    table,
)
from continuum_kv_listener.config import ListenerConfig, PromptFormatName, SourceConfig, ZmqMode
from continuum_kv_listener.discovery import DiscoveryError, ask, settle
from continuum_kv_listener.engine_client import EngineClient, EngineError
from continuum_kv_listener.engine_text import TokenizerFileError
from continuum_kv_listener.replay import ReplayClient, ReplayError, ReplaySettings
from continuum_kv_listener.sources.publisher_acl import (
    AdmissionDesk,
    UnresolvedPublisher,
    resolve_acl,
)
from continuum_kv_listener.sources.readable import Socket
from continuum_kv_listener.sources.zmq_source import (
    Admission,
    LinkUp,
    ZmqEndpointSettings,
    ZmqSource,
)
from continuum_kv_listener.trtllm_client import PollError, TrtllmClient
from continuum_kv_listener.world import World
from continuum_shared.backoff import Backoff
from continuum_shared.config.kinds import HttpEndpoint
from continuum_shared.tasks import Supervisor

BEYOND_EVERY_SEQUENCE = 2**62
"""A replay from here is answered by the end marker alone, so nothing is transferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTimes:
    """Seconds for one attempt of each kind."""

    connect: float = 3.0
    replay: float = 3.0
    http: float = 5.0


def check(config: ListenerConfig, *, out: TextIO, times: CheckTimes | None = None) -> int:
    """Try everything and print the table. Returns 0 when all is well, else 1."""
    outcomes = asyncio.run(try_all(config, times or CheckTimes()))
    print(table(outcomes), file=out)
    print(f"\n{next_step(outcomes)}", file=out)
    return 0 if all(outcome.good is not False for outcome in outcomes) else 1


async def try_all(config: ListenerConfig, times: CheckTimes) -> list[Outcome]:
    """The listener's own rows, then each source's endpoints, in the order of the file."""
    serving = await try_serving(config, times.http, wall_clock())
    supervisor = Supervisor("check")
    context: zmq.Context[Socket] = zmq.Context()
    desk = AdmissionDesk(context)
    supervisor.supervise("admission", desk.run, Backoff(0.1, 1.0))
    try:
        async with aiohttp.ClientSession(trust_env=False) as session:
            tried = await asyncio.gather(
                *(
                    _try_source(source, _Tools(context, desk, session, times))
                    for source in config.active_sources
                )
            )
    finally:
        await supervisor.stop()
        desk.close()
        context.destroy(0)
    return [*serving, *(outcome for outcomes in tried for outcome in outcomes)]


@dataclass(frozen=True, slots=True)
class _Tools:
    context: "zmq.Context[Socket]"
    desk: AdmissionDesk
    session: aiohttp.ClientSession
    times: CheckTimes


async def _try_source(source: SourceConfig, tools: _Tools) -> list[Outcome]:
    if source.polled:
        return [await _try_polled(source, tools)]
    found = []
    if source.discover is not None:
        outcome, source = await _try_discover(source, source.discover, tools)
        found = [outcome]
        if not outcome.good:
            return found
    ranks = await asyncio.gather(
        *(_try_rank(source, rank, tools) for rank in range(source.dp_size))
    )
    outcomes = [*found, *(outcome for rank in ranks for outcome in rank)]
    outcomes.extend(await _try_http(source, tools))
    return outcomes


async def _try_discover(
    source: SourceConfig, url: HttpEndpoint, tools: _Tools
) -> tuple[Outcome, SourceConfig]:
    """Ask the engine where it publishes; the source with what it said."""
    try:
        found = settle(source, await ask(tools.session, url), url)
    except DiscoveryError as error:
        return _row(source, "discover", str(url), good=False, note=str(error)), source
    note = "; ".join(found.warnings) or f"{found.source.dp_size} rank(s)"
    return _row(source, "discover", str(url), good=True, note=note), found.source


async def _try_polled(source: SourceConfig, tools: _Tools) -> Outcome:
    """Whether the path is there. Its events are left alone: an answer drains the buffer."""
    client = TrtllmClient(tools.session, str(source.polled_at), max_bytes=source.max_frame_bytes)
    try:
        async with asyncio.timeout(tools.times.http):
            await client.look()
    except TimeoutError:
        return _row(source, "events (poll)", client.url, good=False, note="timeout")
    except PollError as error:
        return _row(source, "events (poll)", client.url, good=False, note=str(error))
    note = "events not read: an answer would drain them"
    return _row(source, "events (poll)", client.url, good=True, note=note)


async def _try_rank(source: SourceConfig, rank: int, tools: _Tools) -> list[Outcome]:
    """The sockets of one data-parallel rank; most engines have one (decisions C18)."""
    outcomes = [await _try_events(source, rank, tools)]
    if source.zmq_replay_endpoint is not None:
        outcomes.append(await _try_replay(source, rank, tools))
    return outcomes


def _of_rank(what: str, source: SourceConfig, rank: int) -> str:
    return what if source.dp_size == 1 else f"{what} rank {rank}"


async def _try_events(source: SourceConfig, rank: int, tools: _Tools) -> Outcome:
    endpoint, binds = str(source.published_at.of_rank(rank)), source.mode is ZmqMode.BIND
    what = _of_rank(f"events ({source.mode.value})", source, rank)
    admission = None
    if binds:
        try:
            acl = await resolve_acl(
                source.allowed_publishers, local=bool(source.published_at.ipc_path)
            )
        except UnresolvedPublisher as error:
            return _row(source, what, endpoint, good=False, note=str(error))
        admission = Admission(desk=tools.desk, acl=acl)
    link = ZmqSource(
        ZmqEndpointSettings(
            # names the admission rule, so each rank needs its own
            name=f"{source.backend_name}#{rank}" if rank else source.backend_name,
            endpoint=endpoint,
            mode=source.mode,
            topic=source.zmq_topic,
            max_message_bytes=source.max_frame_bytes,
        ),
        context=tools.context,
        on_drop=lambda _: None,
        admission=admission,
    )
    try:
        connected = await _comes_up(link, tools.times.connect)
    finally:
        link.close()
    if connected:
        return _row(source, what, endpoint, good=True)
    if binds and link.last_error is not None:
        note = f"{link.last_error}: does the engine bind it too? Then set zmq_mode: connect"
        return _row(source, what, endpoint, good=False, note=note)
    if link.refused is not None:
        note = f"refused a publisher at {link.refused}: add it to allowed_publishers"
        return _row(source, what, endpoint, good=False, note=note)
    if binds:
        note = "listening, but no engine connected while we waited"
        return _row(source, what, endpoint, good=None, note=note)
    note = (
        f"{link.last_error or 'no answer'}: is the engine up with KV events on? If its endpoint "
        "names this host, it connects: set zmq_mode: bind"
    )
    return _row(source, what, endpoint, good=False, note=note)


async def _comes_up(link: ZmqSource, seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline:
        items = await link.receive(max(0.0, deadline - loop.time()))
        if any(isinstance(item, LinkUp) for item in items):
            return True
    return False


async def _try_replay(source: SourceConfig, rank: int, tools: _Tools) -> Outcome:
    assert source.zmq_replay_endpoint is not None
    endpoint = str(source.zmq_replay_endpoint.of_rank(rank))
    what = _of_rank("replay", source, rank)
    client = ReplayClient(
        ReplaySettings(
            source=source.backend_name, endpoint=endpoint, first_answer=tools.times.replay
        ),
        context=tools.context,
        on_drop=lambda _: None,
    )
    try:
        async with client.ask(BEYOND_EVERY_SEQUENCE) as answers:
            async for _ in answers:
                pass
    except ReplayError as error:
        hint = REPLAY_HINTS.get(error.fault)
        note = f"{error.fault.value}: {hint}" if hint else error.fault.value
        return _row(source, what, endpoint, good=False, note=note)
    return _row(source, what, endpoint, good=True)


async def _try_http(source: SourceConfig, tools: _Tools) -> list[Outcome]:
    urls = engine_endpoints(source)
    client = EngineClient(tools.session, urls, model=source.models[0], timeout=tools.times.http)
    outcomes: list[Outcome] = []
    if urls.health is not None:
        healthy = await client.health()
        note = "" if healthy else HEALTH_HINT
        outcomes.append(_row(source, "health", urls.health, good=healthy, note=note))
    if urls.detokenize is not None and source.tokenizer is None:
        outcomes.append(
            await _called(
                source, "detokenize", urls.detokenize, lambda: client.detokenize([0, 1, 2])
            )
        )
    if source.prompt_format.name is not PromptFormatName.AUTO:
        return outcomes
    if source.endpoints is None and source.tokenizer is None:
        return outcomes
    unasked = source.model_copy(update={"calibrate_by_request": False})
    try:
        judge = attributor(unasked, client, World(rng=random.Random()))
    except TokenizerFileError as error:
        outcomes.append(_row(source, "tokenizer", "-", good=False, note=str(error)))
        return outcomes
    state = await judge.calibrate(0.0)
    note = "; ".join(state.warnings)
    outcomes.append(
        _row(source, "template", urls.tokenize or "-", good=state.calibrated, note=note)
    )
    return outcomes


async def _called(
    source: SourceConfig, what: str, endpoint: str, call: Callable[[], Awaitable[object]]
) -> Outcome:
    try:
        await call()
    except EngineError as error:
        hint = ENGINE_HINTS.get(error.fault)
        note = f"{error}: {hint}" if hint else str(error)
        return _row(source, what, endpoint, good=False, note=note)
    return _row(source, what, endpoint, good=True)


def _row(
    source: SourceConfig, what: str, endpoint: str, *, good: bool | None, note: str = ""
) -> Outcome:
    return Outcome(source=source.backend_name, what=what, endpoint=endpoint, good=good, note=note)
