"""The delays between attempts: doubling up to a ceiling, with jitter. Sleeps nowhere."""

import random


class Backoff:
    """A sequence of delays in seconds.

    Takes the first delay, the ceiling and the factor. With ``jitter`` each delay is drawn evenly
    from the upper half of its nominal value, so that many peers that failed together do not come
    back together, and none comes back at once. ``rng`` is a parameter so that tests are exact.
    """

    __slots__ = ("_current", "_initial", "_jitter", "_maximum", "_multiplier", "_rng")

    def __init__(
        self,
        initial: float,
        maximum: float,
        multiplier: float = 2.0,
        *,
        jitter: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        if initial <= 0 or maximum < initial or multiplier < 1:
            raise ValueError(
                "a backoff needs 0 < initial <= maximum and a multiplier of at least 1"
            )
        self._initial = initial
        self._maximum = maximum
        self._multiplier = multiplier
        self._jitter = jitter
        self._rng = rng or random.Random()
        self._current = initial

    def next(self) -> float:
        """The delay before the next attempt, in seconds; the one after it is longer."""
        nominal = self._current
        self._current = min(self._maximum, nominal * self._multiplier)
        return nominal * self._rng.uniform(0.5, 1.0) if self._jitter else nominal

    def reset(self) -> None:
        """Begin again at the first delay: the peer answered."""
        self._current = self._initial
