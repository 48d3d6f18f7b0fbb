"""What is chosen to differ from Mooncake is written down, and nothing that is not chosen."""

from __future__ import annotations

import re
from pathlib import Path

from tests.compat.beds import HERE

DOCS = HERE.parents[1] / "docs" / "mooncake.md"
USED = re.compile(r'differs\(\s*"([^"]+)"')
ROW = re.compile(r"^\| ([a-z][^|]*?) \| ", re.MULTILINE)


def test_the_table_has_what_cases_use() -> None:
    used: set[str] = set()
    for path in sorted(Path(HERE).rglob("*.py")):
        if path.name != Path(__file__).name:
            used |= set(USED.findall(path.read_text()))
    table = DOCS.read_text().split("<!-- differences -->")[1]
    assert set(ROW.findall(table)) - {"name"} == used
