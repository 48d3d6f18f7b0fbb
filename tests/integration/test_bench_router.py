"""``moonpool bench router``: everything once, small. No figure is asserted: only that all is there,
and that every answer came through the router byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moonpool.bench.router_wire import Reader, WireError
from tests.integration.processes import environment

RUN_S = 250.0

pytestmark = pytest.mark.timeout(300)


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moonpool.cli", "bench", "router", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=RUN_S,
        check=False,
    )


def test_many_streams_at_a_time_come_through_unmixed(tmp_path: Path) -> None:
    for needed in ("mistral_common", "tokenizers", "transformers"):
        pytest.importorskip(needed)
    if shutil.which("taskset") is None:
        pytest.skip("taskset is not there")
    file = tmp_path / "router.json"
    ended = _bench("--preset", "quick", "--streams", "300", "--json", str(file))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads(file.read_text())
    assert list(said["sections"]) == ["chats", "start", "streams"]
    rows = {row["what"]: row for each in said["sections"].values() for row in each["rows"]}
    assert all(row["value"] is not None for row in rows.values())
    whole = rows["300 streams at a time, moonpool router: all bytes right"]
    assert (whole["value"], whole["against_value"], whole["met"]) == (300, 300, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--preset", "x"), "--preset: 'x' is none of bars, quick"),
        (("--only", "x"), "--only: 'x' is none of chats, start, streams"),
        (("--vs", "/nowhere/vllm-router"), "--vs: '/nowhere/vllm-router' is no program"),
    ],
)
def test_wrong_flags_are_named(arguments: tuple[str, ...], why: str) -> None:
    ended = _bench(*arguments)
    assert ended.returncode == 2
    assert why in ended.stderr


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "message",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3;x\r\ndef\r\n0\r\n\r\n",
    ],
)
def test_answers_are_read_in_any_pieces(message: bytes, size: int) -> None:
    reader = Reader()
    for begin in range(0, len(message), size):
        assert not reader.done
        reader.feed(message[begin : begin + size])
    assert reader.done
    assert reader.body == b"abcdef"


def test_a_head_without_an_end_is_an_error() -> None:
    with pytest.raises(WireError):
        Reader().feed(b"x" * 100_000)
