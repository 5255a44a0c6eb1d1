"""Time of the router's own code for one ordinary request on the fast path: no sockets, no kernel.

    python tests/bench/bench_fast_path.py [--profile]

Both transports are in memory. Prints microseconds a request, plain and streamed; what sockets and
the event loop cost comes on top (docs/performance.md).
"""

import asyncio
import cProfile
import json
import pstats
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.fast_rig import FastRig, chat, fast_rig
from support.scripted_backend import LAST_CHUNK, chunk, chunked_head, reply

ROUNDS, REQUESTS, CHUNKS = 9, 3000, 20
ANSWER = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "text": "y" * 300})
EVENT = chunk(f"data: {ANSWER}\n\n".encode())


def exchange(rig: FastRig, request: bytes, pieces: list[bytes]) -> None:
    """One request and its answer."""
    rig.client.data_received(request)
    for connection, wire in rig.backends.values():
        if wire.pieces:
            wire.pieces.clear()
            for piece in pieces:
                connection.data_received(piece)
    rig.wire.pieces.clear()


async def measure(name: str, request: bytes, pieces: list[bytes]) -> None:
    async with fast_rig("health_checks: {enabled: false}") as rig:
        best = []
        for _ in range(ROUNDS):
            start = time.process_time()
            for _ in range(REQUESTS):
                exchange(rig, request, pieces)
            best.append((time.process_time() - start) / REQUESTS * 1e6)
        print(f"fast path, {name}: {min(best):.1f} us a request")
        if "--profile" in sys.argv:
            profile = cProfile.Profile()
            profile.enable()
            for _ in range(REQUESTS):
                exchange(rig, request, pieces)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)


async def main() -> None:
    await measure("plain", chat(), [reply(ANSWER.encode())])
    events = [chunked_head() + EVENT, *[EVENT] * (CHUNKS - 1), LAST_CHUNK]
    await measure(f"streamed, {CHUNKS} chunks", chat(stream=True), events)


if __name__ == "__main__":
    import logging

    logging.getLogger("continuum_router").setLevel(logging.WARNING)
    asyncio.run(main())
