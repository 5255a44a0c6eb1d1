"""Tokens a byte of prompt, learned for each model from the counts that engines report.

Cost mode has no tokenizer. What it decides by are sums over whole prompts, and an error of a fifth
in this ratio costs next to nothing (design/routing.md 5).
"""

from collections import OrderedDict

FIRST = 0.25
LOWEST, HIGHEST = 0.02, 2.0
MAX_MODELS = 1024
_WEIGHT = 0.05


class TokenRatios:
    """Ratios by model; model names come from clients, so the least recently taught goes first."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def ratio(self, model: str) -> float:
        """Tokens a byte; a quarter until something was reported."""
        known = self._known.get(model)
        return FIRST if known is None else known[0]

    def learn(self, model: str, size: int, tokens: float) -> None:
        """A prompt of ``size`` bytes had ``tokens`` tokens."""
        if size <= 0 or tokens <= 0:
            return
        seen = min(HIGHEST, max(LOWEST, tokens / size))
        ratio, count = self._known.get(model, (FIRST, 0))
        weight = max(_WEIGHT, 1 / (count + 1))
        self._known[model] = (ratio + weight * (seen - ratio), count + 1)
        self._known.move_to_end(model)
        if len(self._known) > MAX_MODELS:
            self._known.popitem(last=False)
