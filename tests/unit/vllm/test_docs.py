"""docs/vllm.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def rows_of(section: str) -> list[tuple[str, str]]:
    """Return (first, last) column of the tables of a section of the page on reliability."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    (part,) = [each for each in page.split("\n## ") if each.startswith(section)]
    return re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", part, re.MULTILINE)


def all_tests() -> str:
    return "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def test_all_33_weaknesses_have_a_test_or_are_not_yet_handled() -> None:
    rows = rows_of("Known weaknesses of the in-tree connector")
    assert [int(number) for number, _ in rows if number.isdigit()][:33] == list(range(1, 34))


@pytest.mark.parametrize("of", ["the in-tree connector", "Mooncake Store"])
def test_each_weakness_names_tests_that_exist(of: str) -> None:
    known, rows = all_tests(), rows_of(f"Known weaknesses of {of}")
    assert len(rows) > 33
    for cause, state in rows:
        named = re.findall(r"`(test_\w+)`", state)
        assert named or "not yet handled" in state or state == "here", cause
        for name in named:
            assert f"def {name}(" in known, f"{cause}: {name}"
