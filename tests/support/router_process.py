"""The router as a process of its own, with the memory that it has."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RouterProcess:
    """A running router. `rss` is in bytes (Linux)."""

    pid: int
    port: int

    def rss(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise LookupError("no VmRSS")


@contextlib.asynccontextmanager
async def router_process(folder: Path, config: str) -> AsyncIterator[RouterProcess]:
    """Start a router with this file, listening on a free port; kill it at the end."""
    file = folder / "router.yaml"
    file.write_text(config, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "continuum_router.cli", "serve", "--config", str(file)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        listen = ""
        while not listen:
            line = json.loads(await process.stdout.readline())
            listen = line["fields"].get("listen", "")
        yield RouterProcess(process.pid, int(listen.rpartition(":")[2]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
