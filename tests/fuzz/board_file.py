"""The master's table of marks, as a client finds it in a file."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path

from moonpool.client.board import board_of
from moonpool.core import messages as m
from moonpool.core.keys import pack
from moonpool.core.marks import Marks
from moonpool.master.board import Board
from moonpool.protocol.board import BEAT_AT
from moonpool.transport.host import host_identity
from tests.fuzz import mutate
from tests.fuzz.target import REFUSED, TAKEN, Target, require

SPACE = b"s" * 16
NAMES = [b"%016d" % i for i in range(32)]


class BoardFile(Target):
    """Tables that are damaged: lookups answer, or the master is asked instead."""

    name = "lookup tables"
    share = 3.0
    episode = 200

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm"))
        board = Board(str(self._root), 7)
        marks = Marks(board.seed, board)
        for name in NAMES:
            marks.add(pack(name, SPACE))
        board.beat(0)
        self._path = Path(board.path)
        self._good = self._path.read_bytes()
        self._offer = m.Welcome(2, 7, str(self._path), host_identity(self._root), board.cookie, "")
        self._board = board

    def close(self) -> None:
        self._board.close()
        shutil.rmtree(self._root)

    def take(self, chance: random.Random) -> str:
        raw = bytearray(self._good)
        raw[BEAT_AT : BEAT_AT + 8] = time.monotonic_ns().to_bytes(8, "little")
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(200) if chance.random() < 0.6 else chance.randrange(len(raw))
            word = chance.choice(mutate.WORDS).to_bytes(8, "little")
            new = word if chance.random() < 0.5 else bytes([raw[at] ^ 1 << chance.randrange(8)])
            raw[at : at + len(new)] = new[: len(raw) - at]
        if chance.random() < 0.1:
            del raw[chance.randrange(len(raw)) :]
        self._path.write_bytes(raw)
        board = board_of(self._offer)
        if board is None:
            return REFUSED
        count = board.prefix(SPACE, b"".join(NAMES), 1)
        require(count is None or 0 <= count <= len(NAMES), f"{count} of {len(NAMES)}")
        board.has(pack(NAMES[0], SPACE))
        board.has(b"\0never put")
        board.which([pack(name, SPACE) for name in NAMES])
        board.any_on_disk()
        return REFUSED if count is None else TAKEN
