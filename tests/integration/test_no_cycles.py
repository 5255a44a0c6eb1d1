"""Nothing of a request waits for the cycle collector: bodies would pile up and pauses grow."""

import gc
import json
from contextlib import asynccontextmanager

import pytest

from support.edge import BODY, edge_config, running
from support.scripted_backend import answers, breaks_after, chunked_head, reply, scripted, streams

CASES = {
    "plain": (lambda: answers(reply(b"{}")), BODY),
    "stream": (lambda: streams('{"choices":[]}', "[DONE]"), {**BODY, "stream": True}),
    "refused": (lambda: answers(reply(b"{}")), {"model": "unknown", "messages": []}),
    "backend breaks": (lambda: breaks_after(chunked_head()), BODY),
    "backend answers 500": (lambda: answers(reply(b"{}", status="500 X")), BODY),
}


@asynccontextmanager
async def collector_off():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()


@pytest.mark.parametrize("name", CASES)
async def test_a_request_leaves_no_cycle(name):
    script, body = CASES[name]
    async with scripted(script()) as backend:
        async with running(edge_config([backend.url], "retry: {initial_delay: 1ms}")) as edge:
            await edge.post(body)
            async with collector_off():
                for _ in range(5):
                    await edge.post(raw=json.dumps(body).encode())
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                ours = {
                    type(item).__qualname__
                    for item in gc.garbage
                    if type(item).__module__.startswith("continuum_")
                }
            assert ours == set()
