"""The command ``continuum-kv-listener``: words in, exit code out (decisions J1).

Exit codes: 0 good (warnings allowed), 1 problems or failure, 2 usage. A bad configuration is a
report, never a traceback.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from continuum_kv_listener.check import check
from continuum_kv_listener.config import load_config
from continuum_kv_listener.main import run
from continuum_shared.config.report import ConfigError
from continuum_shared.version import __version__

EXAMPLES = """\
examples:
  continuum-kv-listener --config config.kv-listener.yaml
  continuum-kv-listener --config config.kv-listener.yaml --check
  curl http://127.0.0.1:7817/sources
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code; usage errors leave as SystemExit(2)."""
    args = command_line().parse_args(argv)
    try:
        config, report = load_config(args.config, os.environ)
    except ConfigError as bad:
        print(bad.report, file=sys.stderr)
        return 1
    if args.check:
        if report.problems:
            print(report)
        return check(config, out=sys.stdout)
    return run(config, report, env=os.environ)


def command_line() -> argparse.ArgumentParser:
    """The command's parser; the man page is made from it."""
    parser = argparse.ArgumentParser(
        prog="continuum-kv-listener",
        description="Follows the KV-cache events of LLM engines and streams, for each, which "
        "prompt prefixes it holds.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", required=True, help="configuration file")
    parser.add_argument(
        "--check",
        action="store_true",
        help="validate the file, try every endpoint once, print a table, and exit",
    )
    parser.add_argument(
        "--version", action="version", version=f"continuum-kv-listener {__version__}"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
