"""docs/pd.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from moonpool.vllm import stats
from moonpool.vllm.pd import peers

ROOT = Path(__file__).resolve().parents[4]
TEXT = (ROOT / "docs" / "pd.md").read_text()


def test_every_key_its_default_and_what_is_allowed_are_in_the_table() -> None:
    rows = {
        key: (default, allowed)
        for key, default, allowed in re.findall(
            r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", TEXT, re.MULTILINE
        )
    }
    for key, default, allowed, _ in peers.describe():
        assert rows[key] == (str(default or "any").removesuffix(".0"), allowed)


def test_all_tests_that_are_named_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    folders = [ROOT / "tests" / kind / "vllm" for kind in ("unit", "e2e")]
    files = [path for folder in folders for path in folder.rglob("test_*.py")]
    tests = "".join(path.read_text() for path in files)
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_counts_that_are_named_exist() -> None:
    named = set(re.findall(r"`(peer_\w+)`", TEXT)) - {key for key, *_ in peers.describe()}
    assert named == {name for name in {**stats.COUNTERS, **stats.GAUGES} if name[:5] == "peer_"}
