"""The parts of the man pages that no parser knows. Plain text; `code` in backticks becomes bold."""

LISTENER = {
    "NAME": "continuum-kv-listener - tell a router which engine holds which prompt prefix",
    "DESCRIPTION": """\
Follows the KV-cache events of LLM engines (vLLM and SGLang over ZMQ, TensorRT-LLM over HTTP), works
out which prompt prefixes each of them holds, and serves one stream of server-sent events for each.
`continuum-router`(1) reads these streams. Prompts and tokens do not leave the process.

The file names the engines under `sources`. `--check` validates it, tries every endpoint once,
prints a table of what worked and says what to do about the rest.""",
    "HTTP": [
        (
            "GET /events/NAME",
            "The stream of one source. `Last-Event-ID` resumes. A stream that the "
            "listener ends says why in its last comment, `: closed=REASON`. With "
            "`Upgrade: websocket` the same in text messages.",
        ),
        ("GET /sources", "JSON: state of each source, and what is wrong with it."),
        ("GET /metrics", "Prometheus text."),
        ("GET /health", "200 as soon as the daemon serves. Never asks for a token."),
    ],
    "SIGNALS": [
        ("SIGTERM, SIGINT", "End the streams, then the process."),
        (
            "SIGHUP",
            "Look at the files of `tls` now instead of within 30 s. The rest of the file is "
            "read at the start only.",
        ),
    ],
    "ENVIRONMENT": [
        (
            "CONTINUUM_LOG_LEVEL",
            "trace, debug, info, warn or error; wins over the file. Single "
            "targets as `info,continuum_kv_listener.intake=debug`.",
        ),
        ("the names in auth_token_env", "Bearer tokens that readers must show."),
    ],
    "FILES": [
        ("/etc/continuum/kv-listener.yaml", "The file that the systemd unit names."),
        (
            "config.kv-listener.yaml.example",
            "Every key, with comments; beside the sources and in "
            "the container under `/usr/share/doc/continuum-router`.",
        ),
    ],
    "EXIT STATUS": [
        ("0", "A clean end; with `--check`: everything works, warnings allowed."),
        ("1", "A problem in the file, a failed start, a failed check."),
        ("2", "Wrong usage."),
    ],
    "SEE ALSO": "`continuum-router`(1)",
}

ROUTER = {
    "NAME": "continuum-router - route OpenAI requests to the engine that holds their prefix",
    "DESCRIPTION": """\
Takes OpenAI requests on one port and sends each to the backend that has its prompt prefix in the
KV cache, unless that one is too busy; then by consistent hashing or another strategy. What engines
hold it learns from `continuum-kv-listener`(1).

`config validate` names every mistake of a file at once, with its line.""",
    "HTTP": [
        ("GET /health, /healthz", "200 while the process lives."),
        ("GET /health/ready", "200 while it wants traffic, 503 while it drains."),
        ("GET /metrics", "Prometheus text."),
    ],
    "SIGNALS": [
        (
            "SIGHUP",
            "Reload the file, as when its content changes. A file with an error changes nothing.",
        ),
        (
            "SIGTERM, SIGINT",
            "Drain: accept no more, say not ready, let running requests end within "
            "`server.drain_timeout`. A second signal ends the wait.",
        ),
    ],
    "ENVIRONMENT": [
        ("CONTINUUM_LOG_LEVEL", "trace, debug, info, warn or error; wins over the file."),
        (
            "${VAR} in the file",
            "Replaced by the environment, `${VAR:-default}` with a default. "
            "Keys and tokens belong there.",
        ),
    ],
    "FILES": [
        ("/etc/continuum/router.yaml", "The file that the systemd unit names."),
        (
            "deploy/config.router.yaml.example",
            "Every key, with comments; in the container under `/usr/share/doc/continuum-router`.",
        ),
    ],
    "EXIT STATUS": [
        ("0", "Good, warnings allowed."),
        ("1", "Problems or failure."),
        ("2", "Wrong usage."),
    ],
    "SEE ALSO": "`continuum-kv-listener`(1)",
}
