"""A segment that its node left behind: damaged at random, or forged with right checksums."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from moonpool.core import messages as m
from moonpool.core.master import MasterConfig, MasterState
from moonpool.errors import MoonpoolError
from moonpool.node.storage import Storage
from moonpool.transport import layout
from moonpool.transport.segment import Segment
from moonpool.transport.shm import ShmTransport
from tests.fuzz import mutate
from tests.fuzz.target import REFUSED, TAKEN, Target, require
from tests.unit.transport.support import batch, keys, places

SIZES = [1, 100, 4096, 5000, 9000, 12_288, 70] * 3
NAMES = [*keys(len(SIZES) - 1), b"\0" + b"long" * 80]
DATA_BYTES = 64 * layout.PAGE_BYTES


def whole_segment(path: Path) -> tuple[bytes, dict[bytes, bytes]]:
    """Make a segment file with objects in it; return its bytes and the objects."""
    shape = layout.Geometry.holding(DATA_BYTES, 64)
    made = Segment.create(path, layout.new_header("n", "segment-0", shape))
    source, where = batch(3, SIZES), places(SIZES, 5)
    if len(NAMES[-1]) > layout.KEY_INLINE_BYTES:  # its key follows the payload
        where.capacities[-1] += np.uint64(layout.PAGE_BYTES)
    written = ShmTransport(made).write(where, source.pieces, NAMES, [b"\0up"] * len(NAMES))
    require(not written.codes.any(), "objects are written")
    made.close()
    return path.read_bytes(), dict(zip(NAMES, source.payloads(), strict=True))


class SegmentFile(Target):
    """Files of segments, read as a node does that takes them over."""

    name = "segment files"
    share = 8.0
    episode = 200

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm"))
        self._path = self._root / "segment-0.seg"
        self._good, self._objects = whole_segment(self._path)
        self._shape = layout.Geometry.holding(DATA_BYTES, 64)

    def close(self) -> None:
        shutil.rmtree(self._root)

    def take(self, chance: random.Random) -> str:
        raw, forged = self._input(chance)
        self._path.write_bytes(raw)
        try:
            segment = Segment.open(self._path, own=True)
        except MoonpoolError:
            return REFUSED
        try:
            return self._read(segment, forged)
        except MoonpoolError:
            return REFUSED
        finally:
            segment.close()

    def _read(self, segment: Segment, forged: bool) -> str:
        scan = segment.scan(reset=True, pack=True)
        bad: set[int] = set()
        for indexes, _, generations in segment.damaged():
            segment.drop(indexes, generations)
            bad |= set(indexes)
        data = segment.data()
        for each in [*scan.found, *scan.writing]:
            require(each.offset + each.capacity <= data.size, "objects are inside")
            require(each.size <= each.capacity, "objects are as large as their room at most")
            if forged or each.writing or each.index in bad:
                continue
            found = data[each.offset : each.offset + each.size].tobytes()
            require(self._objects.get(each.key) == found, f"wrong bytes of {each.key[:40]!r}")
        return TAKEN if scan.count else REFUSED

    def _input(self, chance: random.Random) -> tuple[bytes, bool]:
        way = chance.random()
        if way < 0.03:
            return mutate.noise(chance, 9000), True
        raw = bytearray(self._good)
        if way < 0.1:
            return bytes(raw[: chance.randrange(len(raw))]), False
        if way < 0.5:
            self._flip(chance, raw)
            return bytes(raw), False
        if way < 0.6:
            self._forge_header(chance, raw)
        else:
            self._forge_entries(chance, raw)
        return bytes(raw), True

    def _flip(self, chance: random.Random, raw: bytearray) -> None:
        """Change words anywhere, more often where tables are."""
        shape = self._shape
        for _ in range(chance.randrange(1, 12)):
            low, high = chance.choice(
                (
                    (0, 800),
                    (shape.owners_offset, shape.owners_offset + 8 * shape.pages),
                    (shape.table_offset, shape.table_offset + 256 * len(SIZES)),
                    (shape.data_offset, len(raw)),
                )
            )
            at = chance.randrange(low, high)
            word = chance.choice(mutate.WORDS).to_bytes(8, "little")
            new = word if chance.random() < 0.3 else bytes([raw[at] ^ 1 << chance.randrange(8)])
            raw[at : at + len(new)] = new[: len(raw) - at]

    def _forge_header(self, chance: random.Random, raw: bytearray) -> None:
        """Change what the header says and make its checksum right again."""
        end = layout.HEADER_BYTES - 8
        body = bytearray(mutate.bytes_of(chance, bytes(raw[:800])).ljust(800, b"\0")[:800])
        body += raw[800:end]
        raw[:end] = body
        raw[end : end + 8] = layout.hash_bytes(bytes(body)).to_bytes(8, "little")

    def _forge_entries(self, chance: random.Random, raw: bytearray) -> None:
        """Change fields of entries and make their checks right again."""
        start = self._shape.table_offset
        table: Any = np.frombuffer(raw, layout.ENTRY, count=64, offset=start)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(SIZES))
            field = chance.choice(layout.ENTRY.names or ())
            kind = layout.ENTRY[field]
            if kind.kind == "u":
                value = chance.choice((*mutate.WORDS, int(table[field][at]) ^ 4096))
                table[field][at] = value & ((1 << 8 * kind.itemsize) - 1)
            else:
                table[field][at] = chance.randbytes(chance.randrange(40))
        table["check"] = layout.entry_checks(table)


class Takeover(SegmentFile):
    """The same files to a whole node, and what it announces to a master."""

    name = "segment files of a node that starts again"
    share = 1.5
    episode = 50

    def take(self, chance: random.Random) -> str:
        raw, _ = self._input(chance)
        folder = self._root / "n"
        folder.mkdir(exist_ok=True)
        total = self._shape.total_bytes
        (folder / "segment-0.seg").write_bytes(raw)
        storage = Storage("n", str(self._root), max(total, 1 << 20), max(total, 1 << 20))
        storage._shapes = {"segment-0": self._shape}
        try:
            storage.open()
        except MoonpoolError:
            return REFUSED
        state, count = MasterState(MasterConfig(), 7), 0
        (info,) = storage.infos("127.0.0.1:1")
        scan = storage.contents("segment-0")
        for request in _announcing(info, scan):
            reply = state.handle(request, "n", 1.0).reply
            require(isinstance(reply, m.Mounted | m.Announced | m.Failed), f"answered {reply}")
            count += isinstance(reply, m.Announced)
        state.validate_state()
        storage.close(delete=True)
        return TAKEN if scan.count else REFUSED


def _announcing(info: m.SegmentInfo, scan: Any) -> list[m.Request]:
    found = [*scan.found, *scan.writing]
    return [m.Mount(info, scan.generation_max), m.Announce(1, found, True)]
