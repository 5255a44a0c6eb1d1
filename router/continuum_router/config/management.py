"""Paths of engines that change or reveal the engine itself; no client reaches them (decisions J20).

A router in front of engines makes their port reachable for strangers. What loads adapters, drops
caches, puts an engine to sleep, exchanges weights or profiles it is the operator's business and is
called at the engine. The lists follow the engines' own HTTP servers; `backends.kinds` carries them
by engine type. Here they stand because a configuration that lists one is refused when it is read.
"""

VLLM_MANAGEMENT = frozenset(
    {
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/pause",
        "/resume",
        "/is_paused",
        "/collective_rpc",
        "/start_profile",
        "/stop_profile",
        "/server_info",
        "/scale_elastic_ep",
        "/is_scaling_elastic_ep",
        "/init_weight_transfer_engine",
        "/update_weights",
        "/get_world_size",
        "/abort_requests",
    }
)

SGLANG_MANAGEMENT = frozenset(
    {
        "/load_lora_adapter",
        "/load_lora_adapter_from_tensors",
        "/unload_lora_adapter",
        "/flush_cache",
        "/clear_hicache_storage_backend",
        "/hicache/storage-backend",
        "/hicache/storage-backend/status",
        "/start_profile",
        "/stop_profile",
        "/freeze_gc",
        "/start_expert_distribution_record",
        "/stop_expert_distribution_record",
        "/dump_expert_distribution_record",
        "/update_weights_from_disk",
        "/update_weights_from_tensor",
        "/update_weights_from_distributed",
        "/update_weights_from_ipc",
        "/update_weight_version",
        "/init_weights_update_group",
        "/destroy_weights_update_group",
        "/init_weights_send_group_for_remote_instance",
        "/send_weights_to_remote_instance",
        "/get_weights_by_name",
        "/get_remote_instance_transfer_engine_info",
        "/post_process_weights",
        "/weights_checker",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/pause_generation",
        "/continue_generation",
        "/abort_request",
        "/open_session",
        "/close_session",
        "/configure_logging",
        "/set_internal_state",
        "/set_trace_level",
        "/slow_down",
        "/server_info",
        "/get_server_info",
        "/get_internal_state",
        "/get_load",
        "/dumper",
    }
)

TRTLLM_MANAGEMENT = frozenset(
    {
        "/kv_cache_events",
        "/perf_metrics",
        "/steady_clock_offset",
        "/prometheus/metrics",
        "/release_memory",
        "/resume_memory",
        "/update_weights",
        "/server_info",
    }
)
"""`/kv_cache_events` drains: a stranger who reads it takes the events from the listener."""

_ALL = {path.lower() for path in VLLM_MANAGEMENT | SGLANG_MANAGEMENT | TRTLLM_MANAGEMENT}


def is_management(path: str) -> bool:
    """True for a management path of any engine, or anything below one; case does not matter.

    Engines behind one router may be of several types, and one may be set up under a prefix: a path
    that ends in `/v1/…` is looked at without it too.
    """
    plain = "/" + path.lower().strip("/")
    for candidate in (plain, plain.removeprefix("/v1")):
        parts = candidate.split("/")
        heads = ("/".join(parts[:count]) for count in range(2, len(parts) + 1))
        if any(head in _ALL or f"/v1{head}" in _ALL for head in heads):
            return True
    return False
