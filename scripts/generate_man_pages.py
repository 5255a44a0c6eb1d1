"""Write man/*.1 from the commands' own parsers and configuration models.

python scripts/generate_man_pages.py            writes them
python scripts/generate_man_pages.py --check    exit 1 when one is stale
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from generate_config_docs import describe_keys
from man_texts import LISTENER, ROUTER

from continuum_kv_listener.cli import command_line as listener_parser
from continuum_kv_listener.config import ListenerConfig
from continuum_router.cli import command_line as router_parser
from continuum_router.config.root import Config
from continuum_router.demo.engine_sim import parser as engine_parser
from continuum_router.demo.fleet import parser as demo_parser
from continuum_shared.config.kinds import SectionModel
from continuum_shared.version import __version__

TARGET = Path(__file__).parent.parent / "man"
ABOUT_KEYS = "One YAML file. Durations carry a unit; [] marks a list."
Pairs = Sequence[tuple[str, str]]


def plain(text: str) -> str:
    """Text that troff shows as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def marked(text: str) -> str:
    """Like `plain`, with `code` in bold."""
    parts = text.split("`")
    return "".join(
        f"\\fB{plain(part)}\\fR" if number % 2 else plain(part) for number, part in enumerate(parts)
    )


def paragraphs(text: str) -> str:
    return "\n.PP\n".join(marked(" ".join(part.split())) for part in text.split("\n\n"))


def pairs(rows: Pairs) -> str:
    return "\n".join(f".TP\n.B {plain(name)}\n{marked(text)}" for name, text in rows)


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, or those of its subcommands, in order."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield parser
        return
    whole = {"demo": demo_parser(), "engine-sim": engine_parser()}
    for action in below:
        for name, child in action.choices.items():
            yield from leaves(whole.get(name, child))


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """(how it is written, what it does) of each option and argument."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        if action.choices is not None:
            value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
        names = ", ".join(action.option_strings)
        text = action.help or ("The configuration file." if action.dest == "config" else "")
        default = action.default
        if default not in (None, False, argparse.SUPPRESS) and "default" not in text:
            text = f"{text} (default {default})".strip()
        yield f"{names} {value}".strip(), text.replace("%%", "%")


def synopsis(parser: argparse.ArgumentParser) -> str:
    """One line for each leaf command."""
    lines = []
    for leaf in leaves(parser):
        usage = leaf.format_usage().removeprefix("usage: ").removeprefix(leaf.prog)
        words = " ".join(usage.replace("[-h]", "").split())
        lines.append(f".B {plain(leaf.prog)}\n{plain(words)}".rstrip())
    return "\n.br\n".join(lines)


def commands(parser: argparse.ArgumentParser) -> str:
    """The options of each leaf command; a heading for each where there are several."""
    found = list(leaves(parser))
    parts = []
    if len(found) > 1:
        parts.append(pairs(list(options(parser))))
    for leaf in found:
        rows = list(options(leaf))
        if len(found) > 1 and rows:
            parts.append(f'.SS "{plain(leaf.prog)}"')
        if rows:
            parts.append(pairs(rows))
    return "\n".join(part for part in parts if part)


def page(
    parser: argparse.ArgumentParser, model: type[SectionModel], texts: Mapping[str, object]
) -> str:
    """The whole page of one command."""
    epilog = (parser.epilog or "").strip().splitlines()[1:]
    examples = "\n".join(plain(line.strip()) for line in epilog)
    name = parser.prog
    keys = [(key, f"{text} ({facts})") for key, facts, text in describe_keys(model)]
    sections = [
        ("NAME", plain(str(texts["NAME"])).replace(" \\- ", " \\- ", 1)),
        ("SYNOPSIS", synopsis(parser)),
        ("DESCRIPTION", paragraphs(str(texts["DESCRIPTION"]))),
        ("OPTIONS", commands(parser)),
        (
            "CONFIGURATION",
            "One YAML file. Durations carry a unit; [] marks a list.\n" + pairs(keys),
        ),
        *((title, pairs(texts[title])) for title in ("HTTP", "SIGNALS", "ENVIRONMENT", "FILES")),
        ("EXIT STATUS", pairs(texts["EXIT STATUS"])),
        ("EXAMPLES", f".nf\n{examples}\n.fi"),
        ("SEE ALSO", marked(str(texts["SEE ALSO"]))),
    ]
    head = (
        f'.\\" Generated by make docs; do not edit.\n'
        f'.TH {plain(name.upper())} 1 "" "continuum\\-router {__version__}" "User Commands"\n'
    )
    return head + "".join(f'.SH "{title}"\n{body}\n' for title, body in sections)


def pages() -> dict[str, str]:
    """File name → content."""
    made = ((router_parser(), Config, ROUTER), (listener_parser(), ListenerConfig, LISTENER))
    return {f"{parser.prog}.1": page(parser, model, texts) for parser, model, texts in made}


def main(arguments: list[str]) -> int:
    stale = []
    for name, text in pages().items():
        path = TARGET / name
        if "--check" not in arguments:
            TARGET.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(f"man/{name} is stale: run make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
