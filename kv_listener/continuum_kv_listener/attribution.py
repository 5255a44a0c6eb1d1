"""From a path of blocks to prefix keys, through the engine's own tokenizer.

:class:`Attributor` belongs to one source. It learns the source's prompt format (decisions C22),
then answers the tracker's questions: it asks the engine for the text of as many tokens as a key
can need, reads the keyed texts out of it and finds the block at which each is complete
(design/chains.md "Asking for text", decisions A17, A18, C21).

Tokens and texts live only inside one call; nothing here is logged.
"""

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from continuum_kv_listener.attribution_types import (
    AttributionMode,
    Completion,
    PathVerdict,
    Question,
    UnattributedReason,
)
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.engine_text import EngineText
from continuum_kv_listener.families import CustomMarkers, Family, custom_format, family_format
from continuum_kv_listener.prompt_format import PromptFormat, parse
from continuum_kv_listener.request_probe import READ_TOKENS, RequestProbe
from continuum_kv_listener.salt_reader import SaltReader
from continuum_kv_listener.teacher import Lesson, NotLearnt, Teacher
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_shared.backoff import Backoff
from continuum_shared.prefix_key import DEFAULT_MAX_PREFIX_LENGTH, KeyText, PrefixKey, derive

MATCH_WINDOW = 50
"""Chains over which the match rate is taken (decisions C22)."""
LEAST_MATCH_RATE = 0.5
RESTART_SPACING = 10.0

NO_SALTS = (
    "salt_echo is on, but no prompt so far carried a router's salt: is it on at the router, and "
    "the backend's type vllm, sglang or trtllm?"
)
LOW_MATCH_RATE = "fewer than half of the last 50 prompts fit the learnt template; learning again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationState:
    """What ``GET /sources`` says about a source's attribution."""

    calibrated: bool
    attribution: AttributionMode
    warnings: tuple[str, ...] = ()
    limits: tuple[TemplateLimit, ...] = ()


def _always() -> bool:
    return True


class Attributor:
    """Prefix keys of one source.

    ``engine`` gives texts, ``teacher`` the prompt format unless ``prompt_format`` names one.
    ``models`` are the served names, each of which gets a key of its own. ``salts`` is the source's
    reader of router-issued salts: while salt echo is on, the template is learnt only once
    ``wanted()`` says that a prompt without a salt waits to be read (docs/decisions/0034).
    ``request`` is shown the texts of paths while its chat is on its way. ``rng`` makes the
    back-off's jitter. Times are seconds of one monotonic clock, given by the caller.
    """

    def __init__(  # noqa: PLR0913  the parts of one source
        self,
        engine: EngineText,
        teacher: Teacher,
        *,
        models: tuple[str, ...],
        max_prefix_length: int = DEFAULT_MAX_PREFIX_LENGTH,
        prompt_format: Family | CustomMarkers | None = None,
        request: RequestProbe | None = None,
        salts: SaltReader | None = None,
        wanted: Callable[[], bool] = _always,
        rng: random.Random,
    ) -> None:
        self._engine = engine
        self._teacher = teacher
        self._models = models
        self._limit = max_prefix_length
        self._request = request
        self._salts = salts
        self._lazy = salts is not None and salts.expected
        self._wanted = wanted
        self._unsalted = False
        self._format: PromptFormat | None = None
        self._state = CalibrationState(
            calibrated=self._lazy,
            attribution=AttributionMode.SALT if self._lazy else AttributionMode.NONE,
            warnings=() if self._lazy else (NotLearnt.NOT_ANSWERING.value,),
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
        self._named = prompt_format is not None
        if prompt_format is None:
            self._due = float("-inf")
        else:
            self._name_format(prompt_format)

    @property
    def state(self) -> CalibrationState:
        """The present state, for ``GET /sources``. Salts that verify are what attributes."""
        if self._salts is not None and self._salts.verified_total:
            return replace(self._state, calibrated=True, attribution=AttributionMode.SALT)
        if self._lazy and self._unsalted and self._salts and not self._salts.refused_total:
            return replace(self._state, warnings=(*self._state.warnings, NO_SALTS))
        return self._state

    @property
    def ready(self) -> bool:
        """Whether questions can be answered; until then it is no use to ask."""
        if self._format is not None or (self._request is not None and self._request.waiting):
            return True
        return self._lazy and not self._wanted()

    @property
    def next_calibration(self) -> float | None:
        """When :meth:`calibrate` should be called next; None when nothing asks for it."""
        if self._busy or (self._lazy and not self._wanted()):
            return None
        return self._due

    def engine_restarted(self, now: float) -> None:
        """Learn again: another process may serve another template. The old format stays till then.

        Named formats stay as they are. Restarts in quick succession (two publishers on one
        endpoint look so) are learnt from once in :data:`RESTART_SPACING` seconds.
        """
        if not self._named:
            self._due = max(now, self._restart_not_before)
            self._backoff.reset()

    async def calibrate(self, now: float) -> CalibrationState:
        """Ask the probes and learn from them; a failure keeps the old format and is tried again."""
        if self._busy or self._named:
            return self.state
        self._busy = True
        self._restart_not_before = now + RESTART_SPACING
        try:
            await self._calibrate(now)
        finally:
            self._busy = False
        return self.state

    async def judge(self, question: Question, now: float) -> PathVerdict:
        """Which keys the question's path holds, and as of which of its blocks.

        Raises :class:`EngineError` when the engine gives no text: ask again later.
        """
        path = _PathText(self._engine, question)
        self._unsalted = True
        await self._show(path)
        prompt_format = self._format
        if prompt_format is None:
            return PathVerdict(done=False, reason=UnattributedReason.NO_FORMAT)
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

    async def _show(self, path: "_PathText") -> None:
        """While the chat that teaches is on its way, this path may be its own."""
        if self._request is not None and self._request.waiting:
            self._request.offer(await path.text(path.block_at(READ_TOKENS)))

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
        self._format, limits = build
        self._state = _calibrated(AttributionMode.FAMILY, limits)

    async def _calibrate(self, now: float) -> None:
        lesson = await self._teacher.teach()
        if isinstance(lesson, Lesson):
            self._format = lesson.learnt.prompt_format
            self._state = _calibrated(lesson.mode, lesson.learnt.limits)
            self._due = None
            self._drifting = False
            self._matches.clear()
            self._backoff.reset()
            self._refused_backoff.reset()
            return
        backoff = self._backoff if lesson.soon else self._refused_backoff
        self._due = now + backoff.next()
        if self._format is None:
            self._state = CalibrationState(
                calibrated=False, attribution=AttributionMode.NONE, warnings=(lesson.value,)
            )

    def _count(self, matched: bool, now: float) -> None:
        """Notice a template that has changed behind our back."""
        self._matches.append(matched)
        if self._drifting or self._named:
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


def _calibrated(mode: AttributionMode, limits: tuple[TemplateLimit, ...]) -> CalibrationState:
    return CalibrationState(
        calibrated=True,
        attribution=mode,
        warnings=tuple(limit.text for limit in limits),
        limits=limits,
    )


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
