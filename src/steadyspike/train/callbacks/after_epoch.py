"""Calls something after an epoch that is only for people, and as rarely as its cost demands."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.01  # of the time at most
_GUESS = 0.2  # seconds that the first call is thought to take


class Sparingly:
    """``sparingly()`` calls ``look`` if all calls together then have taken at most `SHARE` of the time since the start.

    A call is thought to take as long as the last one. What the first one took too long is waited for afterwards.

    Exceptions in ``look`` are reported once through ``tell`` and otherwise ignored.
    """

    def __init__(
        self, look: Callable[[], None], tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ):
        self._look, self._tell, self._clock = look, tell, clock
        self._began, self._cost, self._spent, self._told = clock(), _GUESS, 0.0, False

    def __call__(self) -> bool:
        """Whether it was called."""
        start = self._clock()
        if self._spent + self._cost > SHARE * (start - self._began):
            return False
        try:
            self._look()
        except Exception as error:
            if not self._told:
                self._tell(f"{type(error).__name__}: {error}")
            self._told = True
        self._cost = self._clock() - start
        self._spent += self._cost
        return True
