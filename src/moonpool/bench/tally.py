"""How many bytes were compared, and how many were wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from moonpool.bench.systems import System


@dataclass(slots=True)
class Tally:
    """Sums over a run, by system."""

    verified: dict[str, int] = field(default_factory=dict)
    mismatches: dict[str, int] = field(default_factory=dict)
    copies: str = ""

    def add(self, system: System) -> None:
        """Add what a system's clients compared, and start that count anew."""
        if system.clients:
            self.verified[system.name] = self.verified.get(system.name, 0) + system.verified
            self.mismatches[system.name] = self.mismatches.get(system.name, 0) + system.mismatches
        system.verified = system.mismatches = 0
        self.copies = system.copies or self.copies

    def __str__(self) -> str:
        parts = [
            f"{name}: {self.mismatches[name]} of {verified / 1e9:.1f} GB"
            for name, verified in self.verified.items()
        ]
        return "bytes that came back wrong: " + (", ".join(parts) or "nothing was compared")
