"""From a path of blocks to prefix keys, through the engine's own tokenizer.

:class:`Attributor` belongs to one source. It learns the source's prompt format (decisions C22),
then answers the tracker's questions: it asks the engine for the text of as many tokens as a key
can need, reads the keyed texts out of it and finds the block at which each is complete
(design/chains.md "Asking for text", decisions A17, A18, C21).

Tokens and texts live only inside one call; nothing here is logged.
"""

import random
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from continuum_kv_listener.attribution_types import (
    Completion,
    PathVerdict,
    Question,
    UnattributedReason,
)
from continuum_kv_listener.calibration import (
    CalibrationFailure,
    CalibrationFault,
    Probe,
    learn,
    plain_prompt,
    probe_chats,
)
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.families import CustomMarkers, Family, custom_format, family_format
from continuum_kv_listener.prompt_format import PromptFormat, parse
from continuum_shared.backoff import Backoff
from continuum_shared.prefix_key import DEFAULT_MAX_PREFIX_LENGTH, KeyText, PrefixKey, derive

MATCH_WINDOW = 50
"""Chains over which the match rate is taken (decisions C22)."""
LEAST_MATCH_RATE = 0.5
RESTART_SPACING = 10.0

NOT_ANSWERING = "not calibrated: the engine does not answer /tokenize and /detokenize yet"
NOT_SUPPORTED = (
    "not calibrated: the engine's /tokenize takes no chats under this model name; check it, or "
    "set prompt_format to a family or custom"
)
NOT_READABLE = (
    "not calibrated: probe chats do not come back from /detokenize as they were sent; set "
    "prompt_format to a family or custom, or use salt echo"
)
LOW_MATCH_RATE = "fewer than half of the last 50 prompts fit the learnt template; learning again"


class AttributionMode(StrEnum):
    """Where the prompt format came from (``GET /sources``, decisions J4)."""

    PROBE = "probe"
    FAMILY = "family"
    NONE = "none"


class EngineText(Protocol):
    """What attribution needs from an engine. Each call may raise :class:`EngineError`."""

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]: ...

    async def tokenize_prompt(self, prompt: str) -> list[int]: ...

    async def detokenize(self, tokens: "Sequence[int] | array[int]") -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationState:
    """What ``GET /sources`` says about a source's attribution."""

    calibrated: bool
    attribution: AttributionMode
    warnings: tuple[str, ...] = ()


class Attributor:
    """Prefix keys of one source.

    ``models`` are the served names, each of which gets a key of its own. ``prompt_format`` is None
    for ``auto``. ``rng`` makes the probes' sentinels and the back-off's jitter. Times are seconds
    of one monotonic clock, given by the caller.
    """

    def __init__(
        self,
        engine: EngineText,
        *,
        models: tuple[str, ...],
        max_prefix_length: int = DEFAULT_MAX_PREFIX_LENGTH,
        prompt_format: Family | CustomMarkers | None = None,
        rng: random.Random,
    ) -> None:
        self._engine = engine
        self._models = models
        self._limit = max_prefix_length
        self._rng = rng
        self._format: PromptFormat | None = None
        self._state = CalibrationState(
            calibrated=False, attribution=AttributionMode.NONE, warnings=(NOT_ANSWERING,)
        )
        self._due: float | None = None
        self._busy = False
        # An engine takes minutes to load; once it is up its prompts should not wait for us.
        self._backoff = Backoff(1.0, 10.0, rng=rng)
        self._refused_backoff = Backoff(60.0, 3600.0, rng=rng)
        self._drift_backoff = Backoff(60.0, 3600.0, rng=rng)
        self._drift_not_before = self._restart_not_before = float("-inf")
        self._matches: deque[bool] = deque(maxlen=MATCH_WINDOW)
        self._drifting = False
        if prompt_format is None:
            self._due = float("-inf")
        else:
            self._name_format(prompt_format)

    @property
    def state(self) -> CalibrationState:
        """The present state, for ``GET /sources``."""
        return self._state

    @property
    def ready(self) -> bool:
        """Whether questions can be answered; until then it is no use to ask."""
        return self._format is not None

    @property
    def next_calibration(self) -> float | None:
        """When :meth:`calibrate` should be called next; None when nothing asks for it."""
        return None if self._busy else self._due

    def engine_restarted(self, now: float) -> None:
        """Learn again: another process may serve another template. The old format stays till then.

        Named formats stay as they are. Restarts in quick succession (two publishers on one
        endpoint look so) are learnt from once in :data:`RESTART_SPACING` seconds.
        """
        if self._state.attribution is not AttributionMode.FAMILY:
            self._due = max(now, self._restart_not_before)
            self._backoff.reset()

    async def calibrate(self, now: float) -> CalibrationState:
        """Ask the probes and learn from them; a failure keeps the old format and is tried again."""
        if self._busy or self._state.attribution is AttributionMode.FAMILY:
            return self._state
        self._busy = True
        self._restart_not_before = now + RESTART_SPACING
        try:
            await self._calibrate(now)
        finally:
            self._busy = False
        return self._state

    async def judge(self, question: Question, now: float) -> PathVerdict:
        """Which keys the question's path holds, and as of which of its blocks.

        Raises :class:`EngineError` when the engine gives no text: ask again later.
        """
        prompt_format = self._format
        if prompt_format is None:
            return PathVerdict(done=False, reason=UnattributedReason.NO_FORMAT)
        path = _PathText(self._engine, question)
        wanted = max(self._limit // 3, 1)
        while True:
            last = path.block_at(wanted)
            text = await path.text(last)
            parsed = parse(prompt_format, text, self._limit)
            if parsed.complete or last == path.last_block:
                break
            wanted = 2 * question.block_ends[last]
        by_block: dict[int, list[PrefixKey]] = {}
        for found in parsed.found:
            block = await self._completing_block(
                prompt_format, path, last, found.key_text, found.end / len(text)
            )
            by_block.setdefault(block, []).extend(self._keys(question, found.key_text))
        if parsed.foreign:
            # As a plain prompt it may stay open for ever; as a chat it fits another template.
            self._count(False, now)
        elif parsed.complete:
            self._count(parsed.reason is not UnattributedReason.NO_MATCH, now)
        return PathVerdict(
            completions=tuple(
                Completion(block_index=block, keys=tuple(keys))
                for block, keys in sorted(by_block.items())
            ),
            done=parsed.complete,
            reason=parsed.reason,
        )

    def _keys(self, question: Question, key_text: KeyText) -> list[PrefixKey]:
        names = self._models if question.lora_name is None else (question.lora_name,)
        return [derive(name, key_text, self._limit) for name in names]

    async def _completing_block(
        self,
        prompt_format: PromptFormat,
        path: "_PathText",
        last: int,
        key_text: KeyText,
        share: float,
    ) -> int:
        """The first block whose text from the root completes ``key_text``.

        ``last`` is known to; ``share`` says how far into its text the key ends, which places the
        first guess. Four steps around the guess, then halving.
        """
        low, high = -1, last
        guess = path.block_at(round(path.tokens(last) * share))
        steps = 0
        while high - low > 1:
            at = max(low + 1, min(guess, high - 1)) if steps < 4 else (low + high) // 2
            parsed = parse(prompt_format, await path.text(at), self._limit)
            if any(found.key_text == key_text for found in parsed.found):
                high, guess = at, at - 1
            else:
                low, guess = at, at + 1
            steps += 1
        return high

    def _name_format(self, named: Family | CustomMarkers) -> None:
        build = custom_format(named) if isinstance(named, CustomMarkers) else family_format(named)
        self._format, warnings = build
        self._state = CalibrationState(
            calibrated=True, attribution=AttributionMode.FAMILY, warnings=warnings
        )

    async def _calibrate(self, now: float) -> None:
        nonce = f"{self._rng.getrandbits(40):010x}"
        try:
            rendered = await self._render(nonce)
        except EngineError:
            self._fail(now, NOT_ANSWERING, self._backoff.next())
            return
        learnt = learn(rendered, nonce)
        if isinstance(learnt, CalibrationFailure):
            unsupported = learnt.fault is CalibrationFault.UNSUPPORTED
            warning = NOT_SUPPORTED if unsupported else NOT_READABLE
            self._fail(now, warning, self._refused_backoff.next())
            return
        self._format = learnt.prompt_format
        self._state = CalibrationState(
            calibrated=True, attribution=AttributionMode.PROBE, warnings=learnt.warnings
        )
        self._due = None
        self._drifting = False
        self._matches.clear()
        self._backoff.reset()
        self._refused_backoff.reset()

    async def _render(self, nonce: str) -> dict[Probe, str | None]:
        """Text of each probe; None for those that the engine or its template refuses."""
        rendered: dict[Probe, str | None] = {}
        broken: EngineError | None = None
        for chat in probe_chats(nonce):
            try:
                tokens = await self._engine.tokenize_chat(chat.messages, chat.tools)
            except EngineError as error:
                if error.fault is not EngineFault.UNSUPPORTED:
                    # Some engines answer 500 when a template raises on a role that it lacks.
                    if error.status != 500:
                        raise
                    broken = error
                continue
            rendered[chat.probe] = await self._engine.detokenize(tokens)
        if broken is not None and not rendered:
            raise broken
        try:
            tokens = await self._engine.tokenize_prompt(plain_prompt(nonce))
        except EngineError as error:
            if error.fault is not EngineFault.UNSUPPORTED:
                raise
        else:
            rendered[Probe.PLAIN] = await self._engine.detokenize(tokens)
        return rendered

    def _fail(self, now: float, warning: str, delay: float) -> None:
        self._due = now + delay
        if self._format is None:
            self._state = CalibrationState(
                calibrated=False, attribution=AttributionMode.NONE, warnings=(warning,)
            )

    def _count(self, matched: bool, now: float) -> None:
        """Notice a template that has changed behind our back."""
        self._matches.append(matched)
        if self._drifting or self._state.attribution is not AttributionMode.PROBE:
            return
        if len(self._matches) < MATCH_WINDOW:
            return
        if sum(self._matches) >= LEAST_MATCH_RATE * MATCH_WINDOW:
            self._drift_backoff.reset()
            return
        self._drifting = True
        self._due = max(now, self._drift_not_before)
        # Should the new format fit no better, the next try waits longer.
        self._drift_not_before = self._due + self._drift_backoff.next()
        self._state = replace(self._state, warnings=(*self._state.warnings, LOW_MATCH_RATE))


class _PathText:
    """Texts of a path's beginnings, each asked for once."""

    def __init__(self, engine: EngineText, question: Question) -> None:
        self._engine = engine
        self._question = question
        self._texts: dict[int, str] = {}

    @property
    def last_block(self) -> int:
        return len(self._question.block_ends) - 1

    def tokens(self, block: int) -> int:
        return self._question.block_ends[block]

    def block_at(self, tokens: int) -> int:
        """The first block that ends at or behind ``tokens``; the last one if none does."""
        return min(bisect_left(self._question.block_ends, tokens), self.last_block)

    async def text(self, block: int) -> str:
        """Text from the root to the end of ``block``. Raises :class:`EngineError`."""
        known = self._texts.get(block)
        if known is None:
            known = await self._engine.detokenize(self._question.tokens[: self.tokens(block)])
            if not known:
                # A block's tokens always have a text: believing this would leave the path pending.
                raise EngineError(EngineFault.BAD_ANSWER, "/detokenize")
            self._texts[block] = known
        return known
