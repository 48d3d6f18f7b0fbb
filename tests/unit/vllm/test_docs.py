"""docs/vllm.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from moonpool.vllm import settings

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "vllm.md").read_text()


def test_every_key_and_its_default_are_in_the_table() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE))
    for key, default, *_ in settings.describe():
        assert key in rows
        plain = ", ".join(default) if isinstance(default, tuple) else str(default).lower()
        if default != "":
            assert rows[key] == plain.removesuffix(".0")
    assert set(rows) == {key for key, *_ in settings.describe()}


def test_all_33_weaknesses_have_a_test_or_are_not_yet_handled() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", TEXT, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 34))
    tests = "".join(
        path.read_text()
        for folder in ("unit/vllm", "e2e/vllm", "integration")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
    )
    for number, state in rows:
        named = re.findall(r"`(test_\w+)`", state)
        assert named or "not yet handled" in state, number
        for name in named:
            assert f"def {name}(" in tests, f"{number}: {name}"
