"""The command `continuum-router`: words in, exit code out. No logic of its own (decisions J1).

Exit codes: 0 good (warnings allowed), 1 problems or failure, 2 usage. A bad configuration is a
report, never a traceback.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from continuum_shared.version import __version__

EXAMPLES = """\
examples:
  continuum-router serve --config router.yaml
  continuum-router serve --backend http://10.0.0.5:8000 --backend http://10.0.0.6:8000
  continuum-router config validate --config router.yaml
  continuum-router demo --once
"""

# Whole programs behind one word: their own parsers read the rest of the line.
_DELEGATED = {"demo": "the KV-aware routing demonstration", "engine-sim": "a simulated engine"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; usage errors leave as SystemExit(2)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _DELEGATED:
        return _delegate(words[0], words[1:])
    args = command_line().parse_args(words)
    if args.command == "serve":
        return _serve(args)
    return _config(args)


def _serve(args: argparse.Namespace) -> int:
    from continuum_router.config.root import Config, config_from_backends, load_config
    from continuum_router.config_watch import digest_of
    from continuum_router.main import ConfigFile, run
    from continuum_shared.config.kinds import ListenAddress
    from continuum_shared.config.report import ConfigError, Report

    def read() -> tuple[Config, Report]:
        if args.config is not None:
            config, report = load_config(args.config, os.environ)
        else:
            config, report = config_from_backends(args.backend), Report("--backend")
        if args.listen is not None:
            listen = ListenAddress.parse(args.listen)
            server = config.server.model_copy(update={"listen": listen})
            config = config.model_copy(update={"server": server})
        return config, report

    path = None if args.config is None else Path(args.config)
    digest = None if path is None else digest_of(path)
    try:
        config, report = read()
    except ConfigError as bad:
        print(bad.report, file=sys.stderr)
        return 1
    except ValueError as bad:
        print(f"continuum-router: --listen: {bad}", file=sys.stderr)
        return 2
    file = None if path is None else ConfigFile(path=path, digest=digest, read=read)
    return run(config, report, env=os.environ, loop_factory=_loop_factory(), file=file)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (design/data-plane.md section 7), else asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _config(args: argparse.Namespace) -> int:
    from continuum_router import config_commands as commands

    env, out = os.environ, sys.stdout
    match args.config_command:
        case "validate":
            return commands.validate(args.config, out, env=env)
        case "show":
            return commands.show(args.config, out, env=env, resolved=args.resolved)
        case "diff":
            return commands.diff(args.old, args.new, out, env=env)
        case "schema":
            return commands.schema(out)
        case _:
            return commands.init(out, args.config)


def _delegate(command: str, rest: list[str]) -> int:
    if command == "demo":
        from continuum_router.demo.fleet import main as run_demo

        return run_demo(rest)
    from continuum_router.demo.engine_sim import main as run_engine

    return run_engine(rest)


def command_line() -> argparse.ArgumentParser:
    """The command's parser; the man page is made from it."""
    parser = argparse.ArgumentParser(
        prog="continuum-router",
        description="Routes OpenAI requests to the engine that holds their prefix in its KV cache.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"continuum-router {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_config(commands)
    for name, text in _DELEGATED.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = commands.add_parser(
        "serve",
        help="run the router",
        epilog="example: continuum-router serve --config router.yaml",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = serve.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", metavar="FILE", help="configuration file")
    source.add_argument(
        "--backend",
        metavar="URL",
        action="append",
        help="a backend, with defaults for the rest; may be repeated",
    )
    serve.add_argument("--listen", metavar="HOST:PORT", help="listen here, whatever the file says")


def _add_config(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    config = commands.add_parser(
        "config",
        help="check, show and write configuration files",
        epilog="example: continuum-router config validate --config router.yaml",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = config.add_subparsers(dest="config_command", required=True, metavar="ACTION")
    validate = actions.add_parser("validate", help="say everything that is wrong with a file")
    show = actions.add_parser("show", help="print the file with its secrets masked")
    show.add_argument("--resolved", action="store_true", help="with every default filled in")
    for parser in (validate, show):
        parser.add_argument("--config", metavar="FILE", required=True)
    diff = actions.add_parser("diff", help="what changes between two files, and its reload class")
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    actions.add_parser("schema", help="print the JSON Schema of the file")
    init = actions.add_parser("init", help="write a file to begin with")
    init.add_argument("--config", metavar="FILE", help="where to; standard output by default")


if __name__ == "__main__":
    sys.exit(main())
