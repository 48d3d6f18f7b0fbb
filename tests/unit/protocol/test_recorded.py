"""Nodes and clients of earlier versions, as recorded, keep working with this master.

The recordings are made by scripts/record_wire.py with the release they are named after.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moonpool.core.master import MasterConfig, MasterState
from moonpool.master.service import Service
from moonpool.master.session import Session
from moonpool.protocol.framing import frame
from moonpool.protocol.versions import PINS_SINCE, PROTOCOL_MAX, PROTOCOL_MIN
from tests.unit.master.peers import Clock, Pipe

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))
EXACT = {"Matched", "Existing", "Codes", "Done", "Announced", "Mounted", "DropSlots"}
"""What has to be said again word for word; in other answers places and times may differ."""


class Replay:
    """The connections of a recording, on a Service of the same epoch."""

    def __init__(self, epoch: int) -> None:
        self.service = Service(MasterState(MasterConfig(), epoch), epoch, clock=Clock())
        self._sessions: dict[int, tuple[Session, Pipe]] = {}

    def pipe(self, number: int) -> Pipe:
        """Return what a connection is answered."""
        return self._session(number)[1]

    def say(self, number: int, payload: bytes) -> None:
        """Say on a connection what was said."""
        self._session(number)[0].data_received(frame(payload))

    def end(self, number: int) -> None:
        """End a connection as it ended."""
        self._session(number)[0].connection_lost(None)

    def answer(self, number: int) -> bytes:
        """Return the next frame for a connection."""
        sent = self.pipe(number).sent
        assert len(sent) > 4, f"connection {number} got no answer"
        size = int.from_bytes(sent[:4], "little")
        payload = bytes(sent[4 : 4 + size])
        del sent[: 4 + size]
        return payload

    def _session(self, number: int) -> tuple[Session, Pipe]:
        if number not in self._sessions:
            session, pipe = Session(self.service), Pipe()
            session.connection_made(pipe)
            self._sessions[number] = session, pipe
        return self._sessions[number]


def is_understood(then: Any, now: Any) -> bool:
    """Tell whether who knows the old form finds all of its fields in the new one, of its types."""
    if isinstance(then, list) and isinstance(now, list):
        return len(now) >= len(then) and all(map(is_understood, then, now))
    if isinstance(then, dict) and isinstance(now, dict):
        return set(then) <= set(now)
    return type(then) is type(now)


def lines(recording: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recording.read_text().splitlines()]


def test_every_version_before_this_one_is_recorded() -> None:
    recorded = {int(path.stem) for path in RECORDED}
    assert recorded >= set(range(PROTOCOL_MIN, PROTOCOL_MAX))


@pytest.mark.parametrize("recording", RECORDED, ids=lambda path: path.stem)
async def test_this_master_answers_as_the_one_before(recording: Path) -> None:
    told = [
        (line["connection"], line["way"], bytes.fromhex(line["frame"])) for line in lines(recording)
    ]
    welcome = msgspec.msgpack.decode(next(f for _, way, f in told if way == "from master"))
    replay = Replay(welcome[1][2])
    verbs: set[str] = set()
    for number, way, payload in told:
        if way == "to master":
            verbs.add(msgspec.msgpack.decode(payload)[1][0])
            replay.say(number, payload)
            await asyncio.sleep(0)
        elif way == "end":
            replay.end(number)
        else:
            then, now = (msgspec.msgpack.decode(f) for f in (payload, replay.answer(number)))
            assert is_understood(then, now), f"{now} answers what {then} answered"
            if then[1][0] in EXACT:
                assert now[0] == then[0]
                assert now[1][: len(then[1])] == then[1]
    assert {"Mount", "Announce", "PutStart", "PutEnd", "Get", "Match", "Remove"} <= verbs
    if welcome[1][1] > 2:
        assert {"MountDisk", "Shelve", "Prefetch", "Tell", "Await"} <= verbs
    if welcome[1][1] >= PINS_SINCE:
        assert {"Pin", "Unpin", "UseSession", "EndSession"} <= verbs
    assert replay.service.counts.refused == replay.service.counts.bugs == 0
    replay.service.state.validate_state()
