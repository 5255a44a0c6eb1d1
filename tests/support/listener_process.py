"""The listener as a process of its own, with the memory that it has."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

PROGRAM = "import sys; from continuum_kv_listener.cli import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class ListenerProcess:
    """A running listener. `base` is its URL; sizes are in bytes (Linux)."""

    pid: int
    base: str

    def size(self, field: str = "VmRSS") -> int:
        """Resident memory now, or its peak (``VmHWM``)."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise LookupError(field)


@contextlib.asynccontextmanager
async def listener_process(
    folder: Path,
    sources: Sequence[Mapping[str, object]],
    *,
    env: Mapping[str, str] | None = None,
    **top: object,
) -> AsyncIterator[ListenerProcess]:
    """Start a listener with these sources on a free port; kill it at the end."""
    file = folder / "listener.yaml"
    text = {"listen": "127.0.0.1:0", "sources": [dict(each) for each in sources], **top}
    file.write_text(yaml.safe_dump(text), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "--config", str(file)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    reader = None
    try:
        assert process.stdout is not None
        listen = ""
        while not listen:
            line = json.loads(await process.stdout.readline())
            listen = line["fields"].get("listen", "")
        reader = asyncio.get_running_loop().create_task(_drain(process.stdout))
        yield ListenerProcess(process.pid, f"http://{listen}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if reader is not None:
            await reader


async def _drain(pipe: asyncio.StreamReader) -> None:
    while await pipe.read(65536):
        pass
