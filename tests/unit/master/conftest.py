from __future__ import annotations

import pytest

from moonpool.master.service import log


@pytest.fixture(autouse=True)
def _all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests cause more lines a second than peers may."""
    monkeypatch.setattr(log, "filters", [])
