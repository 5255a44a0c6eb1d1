"""All targets."""

from fuzz.target import Target
from fuzz.targets import (
    edge_reader,
    engine_events,
    engine_pages,
    form_scan,
    json_scan,
    kv_event,
    request_body,
    sse,
    trtllm_answers,
    upstream_reader,
    wire_guard,
)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        edge_reader.TARGET,
        wire_guard.TARGET,
        upstream_reader.TARGET,
        upstream_reader.HEADS,
        sse.TARGET,
        kv_event.TARGET,
        *engine_events.TARGETS,
        trtllm_answers.TARGET,
        engine_pages.PAGES,
        engine_pages.PROMPTS,
        json_scan.TARGET,
        json_scan.EVENTS,
        form_scan.TARGET,
        request_body.TARGET,
    )
}

READERS = ("edge_reader", "wire_guard", "upstream_reader", "upstream_heads")
"""What strangers' bytes meet first: these get the larger part of the time."""
