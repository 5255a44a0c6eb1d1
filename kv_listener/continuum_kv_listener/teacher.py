"""Where a source's prompt format comes from: the ways of decisions C22, tried in their order.

(1) the engine's /tokenize with chats; (2) a local tokenizer's own template; (3) one real chat, if
that is allowed. A named family (4) needs no teacher.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from continuum_kv_listener.attribution_types import AttributionMode
from continuum_kv_listener.calibration import (
    CalibrationFailure,
    CalibrationFault,
    Learnt,
    learn,
)
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.engine_text import EngineText
from continuum_kv_listener.probe_chats import Probe, plain_prompt, probe_chats
from continuum_kv_listener.request_probe import RequestProbe


class NotLearnt(StrEnum):
    """Why there is no format; the value is the sentence for ``GET /sources``."""

    NOT_ANSWERING = "not calibrated: the engine does not answer /tokenize and /detokenize yet"
    NOT_SUPPORTED = (
        "not calibrated: the engine's /tokenize takes no chats under this model name; check it, or "
        "set tokenizer, calibrate_by_request, or prompt_format to a family or custom"
    )
    NOT_READABLE = (
        "not calibrated: probe chats do not come back from /detokenize as they were sent; set "
        "prompt_format to a family or custom, or use salt echo"
    )
    NO_TEXT = (
        "not calibrated: neither detokenize_endpoint nor tokenizer is set, so that only prompts "
        "with a router's salt are attributed"
    )
    NOT_ECHOED = (
        "not calibrated: the chat that was sent to learn the template did not come back in the "
        "engine's events; set prompt_format to a family or custom, or use salt echo"
    )

    @property
    def soon(self) -> bool:
        """Whether it is likely to pass by itself, as an engine's start does."""
        return self is NotLearnt.NOT_ANSWERING


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A format and where it came from."""

    learnt: Learnt
    mode: AttributionMode


class Teacher:
    """The ways open to one source. ``ways`` are tried first, in order, then ``request``."""

    def __init__(
        self,
        ways: Sequence[tuple[AttributionMode, EngineText]],
        *,
        rng: random.Random,
        request: RequestProbe | None = None,
    ) -> None:
        self._ways = tuple(ways)
        self._rng = rng
        self._request = request

    async def teach(self) -> Lesson | NotLearnt:
        """Try every way until one gives a format; else what kept the first from it."""
        first: NotLearnt | None = None
        for mode, text in self._ways:
            learnt = await self._probes(text)
            if isinstance(learnt, Learnt):
                return Lesson(learnt=learnt, mode=mode)
            first = first or learnt
        if self._request is not None and first is not NotLearnt.NOT_ANSWERING:
            learnt = await self._by_request(self._request)
            if isinstance(learnt, Learnt):
                return Lesson(learnt=learnt, mode=AttributionMode.REQUEST)
            first = learnt
        return first or NotLearnt.NO_TEXT

    async def _probes(self, text: EngineText) -> Learnt | NotLearnt:
        nonce = f"{self._rng.getrandbits(40):010x}"
        try:
            rendered = await _render(text, nonce)
        except EngineError:
            return NotLearnt.NOT_ANSWERING
        learnt = learn(rendered, nonce)
        if isinstance(learnt, CalibrationFailure):
            unsupported = learnt.fault is CalibrationFault.UNSUPPORTED
            return NotLearnt.NOT_SUPPORTED if unsupported else NotLearnt.NOT_READABLE
        return learnt

    async def _by_request(self, request: RequestProbe) -> Learnt | NotLearnt:
        try:
            return await request.run() or NotLearnt.NOT_ECHOED
        except EngineError as error:
            refused = error.fault is EngineFault.UNSUPPORTED or error.status == 401
            return NotLearnt.NOT_SUPPORTED if refused else NotLearnt.NOT_ANSWERING


async def _render(text: EngineText, nonce: str) -> dict[Probe, str | None]:
    """Text of each probe; None for those that the engine or its template refuses."""
    rendered: dict[Probe, str | None] = {}
    broken: EngineError | None = None
    for chat in probe_chats(nonce):
        try:
            tokens = await text.tokenize_chat(chat.messages, chat.tools)
        except EngineError as error:
            if error.fault is not EngineFault.UNSUPPORTED:
                # Some engines answer 500 when a template raises on a role that it lacks.
                if error.status != 500:
                    raise
                broken = error
            continue
        rendered[chat.probe] = await text.detokenize(tokens)
    if broken is not None and not rendered:
        raise broken
    try:
        tokens = await text.tokenize_prompt(plain_prompt(nonce))
    except EngineError as error:
        if error.fault is not EngineFault.UNSUPPORTED:
            raise
    else:
        rendered[Probe.PLAIN] = await text.detokenize(tokens)
    return rendered
