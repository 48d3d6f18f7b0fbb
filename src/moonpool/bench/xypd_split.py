"""What is measured in turn: so many engines that prefill, that decode, or that do both."""

from __future__ import annotations

import re
from dataclasses import dataclass

from moonpool.errors import ConfigError

ENGINES_MAX = 64


@dataclass(frozen=True, slots=True)
class Split:
    """So many engines that only prefill and only decode; ``both``: that do all of it."""

    prefill: int = 0
    decode: int = 0
    both: int = 0

    def __str__(self) -> str:
        return str(self.both) if self.both else f"{self.prefill}P{self.decode}D"


def splits(text: str) -> tuple[Split, ...]:
    """Return what ``1P1D,2P4D,3`` means; raise ConfigError."""
    found = tuple(_split(part.strip()) for part in text.split(",") if part.strip())
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"configs: {text!r} is not allowed; allowed: different ones, such as "
                          "1P1D,2P4D")  # fmt: skip
    return found


def _split(text: str) -> Split:
    match = re.fullmatch(r"(?:(\d{1,3})[pP](\d{1,3})[dD]|(\d{1,3}))", text)
    numbers = [int(number) for number in match.groups() if number] if match else []
    if not numbers or min(numbers) < 1 or sum(numbers) > ENGINES_MAX:
        raise ConfigError(
            f"configs: {text!r} is not allowed; allowed: 1P1D and so on, or a number of engines "
            f"that do both; {ENGINES_MAX} engines at most"
        )
    return Split(*numbers) if len(numbers) == 2 else Split(both=numbers[0])
