"""A client process: ``python -m tests.chaos.client JSON``. Looks up, loads and saves as the
connector does, reads back what has to stay, and checks every byte; until it is ended."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moonpool import MoonpoolError, Store
from moonpool.core.keys import pack
from moonpool.transport.base import Pieces
from tests.chaos.content import SIZE_MAX, content_of, is_right, size_of
from tests.chaos.tally import Tally, code_of, outcome_of

SPACE = b"chaos-namespace!"
CHAIN = 6
"""Objects in a conversation."""
CALL_S = 2.0
PAUSE_S = 0.01
REST_S = 0.1
"""After a call that found no master."""


def names_of(client: int, talk: int) -> list[bytes]:
    """Return the digests of a conversation's objects."""
    return [f"{client:04d}{talk:08d}{i:04d}".encode() for i in range(CHAIN)]


def kept_name(client: int, number: int) -> bytes:
    """Return the packed key of an object that has to stay."""
    return pack(f"kept-{client}-{number}".encode())


class Client:
    """One life of a client; what it counts goes on from the life before."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.number: int = options["number"]
        self._all = [Tally(Path(path)) for path in options["tallies"]]
        self.tally = self._all[self.number]
        self.kept = [int(n) for n in _lines(options["ledger"]) if n.isdecimal()]
        self._ledger = os.open(options["ledger"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._options = options
        self._chance = random.Random()
        self._kept_at = 0.0
        self._room = np.zeros(CHAIN * SIZE_MAX, np.uint8)
        self.store = self._connect()
        self.store.register_buffer(self._room)

    def _connect(self) -> Store:
        """Join the pool, as the connector does: at once, or when it is there."""
        store: Store | None = None
        while store is None:
            with self._call("connect"):
                store = Store.connect(
                    self._options["pool"],
                    name=f"chaos-{self.number}",
                    transports=tuple(self._options["transports"]),
                    timeout_s=CALL_S,
                    put_timeout_s=CALL_S,
                    wait=False,
                )
                self.tally.count("connect", "ok")
            time.sleep(PAUSE_S)
        return store

    def run(self) -> None:
        """Work without end."""
        ways = [self.turn] * 4 + [self.keep, self.reread, self.single, self.look]
        while True:
            self._chance.choice(ways)()
            time.sleep(PAUSE_S)

    @contextlib.contextmanager
    def _call(self, kind: str) -> Iterator[None]:
        """Note a call's begin and end; count its failure."""
        self.tally.begin(kind)
        try:
            yield
        except MoonpoolError as error:
            outcome = outcome_of(code_of(error))
            self.tally.count(kind, outcome)
            if outcome == "odd":
                self.say(f"odd: {kind}: {error!r}")
            if outcome == "away":
                time.sleep(REST_S)
        finally:
            self.tally.end()

    def say(self, text: str) -> None:
        """Write a finding down."""
        os.write(self._ledger, f"! client {self.number}: {text}\n".encode())

    def _note(self, kind: str, codes: list[int]) -> None:
        for code in codes:
            outcome = outcome_of(code)
            self.tally.count(kind, outcome)
            if outcome == "odd":
                self.say(f"odd: {kind}: code {code}")

    # --- a conversation -------------------------------------------------------------------------

    def turn(self) -> None:
        """Look a conversation up, load what is there under a lease, and save the rest."""
        talk = self._talk()
        names = names_of(*talk)
        keys, count = [pack(name, SPACE) for name in names], 0
        with self._call("turn"):
            digests = b"".join(names)
            count = self.store.match_digests(SPACE, digests)
            if count:
                self.store.prefetch(SPACE, digests[: 16 * count])
            self.tally.count("turn", "ok" if count else "miss")
        if count:
            self._load(keys[:count])
        # What another client may just be removing is not put again: nobody would remove it.
        mine = talk[0] == self.number or self._options["tight"]
        if count < len(keys) and mine and not self.tally.holds:
            self._save(keys, count)

    def _talk(self) -> tuple[int, int]:
        """Return a conversation: a new one, a past one, or another client's."""
        mine = self._chance.random()
        if mine < 0.3:
            last = self.tally.number(0)
            self._remove(last - self._options["talks"])
            return self.number, last
        client = self.number if mine < 0.8 else self._chance.randrange(len(self._all))
        last = self._all[client].last(0)
        return client, max(1, last - self._chance.randrange(self._options["talks"]))

    def _load(self, keys: list[Any]) -> None:
        with self._call("load"):
            lease = self.store.hold(keys, 2 * CALL_S)
            try:
                pieces = self._pieces(keys)
                codes = self.store.get_pieces(
                    keys, pieces, lease=lease.id, timeout_s=CALL_S, exact=True
                ).tolist()
            finally:
                self.store.release(lease)
            self._note("load", codes)
            for i in [i for i, code in enumerate(codes) if code == 0]:
                self._check("load", keys[i], self._room[i * SIZE_MAX :][: size_of(keys[i])])

    def _save(self, keys: list[Any], first: int) -> None:
        with self._call("save"):
            some = keys[first:]
            for i, key in enumerate(some):
                self._room[i * SIZE_MAX :][: size_of(key)] = content_of(key)
            parents = [None, *keys][first : first + len(some)]
            codes = self.store.put_pieces(
                some, self._pieces(some), parents=parents, timeout_s=CALL_S
            )
            self._note("save", codes.tolist())

    def _pieces(self, keys: list[Any]) -> Pieces:
        base = self._room.__array_interface__["data"][0]
        at = np.arange(len(keys), dtype=np.uint64) * np.uint64(SIZE_MAX) + np.uint64(base)
        sizes = np.array([size_of(key) for key in keys], np.uint64)
        return Pieces(at, sizes, np.arange(len(keys) + 1, dtype=np.int64))

    def _remove(self, talk: int) -> None:
        if talk > 0 and not self._options["tight"]:
            with self._call("remove"):
                keys = [pack(name, SPACE) for name in names_of(self.number, talk)]
                self._note("remove", self.store.remove_batch(keys, force=True))

    # --- single objects -------------------------------------------------------------------------

    def keep(self) -> None:
        """Put an object that has to stay; write down that it was acknowledged."""
        due = self._kept_at + self._options["keep_every_s"] <= time.monotonic()
        if self.tally.holds or not due or len(self.kept) >= self._options["kept"]:
            return
        self._kept_at = time.monotonic()
        number = self.tally.number(1)
        key = kept_name(self.number, number)
        with self._call("keep"):
            done = self.store.put(key, content_of(key), replicas=1 + (number % 4 == 0))
            if done:
                os.write(self._ledger, f"{number}\n".encode())
                self.kept.append(number)
            self.tally.count("keep", "ok" if done else "taken")

    def reread(self) -> None:
        """Read some of what has to stay."""
        if not self.kept:
            return
        some = self._chance.sample(self.kept, min(4, len(self.kept)))
        keys = [kept_name(self.number, number) for number in some]
        with self._call("read"):
            for key, value in zip(keys, self.store.get_batch(keys), strict=True):
                self.tally.count("read", "miss" if value is None else "ok")
                if value is not None:
                    self._check("read", key, value)

    def single(self) -> None:
        """Read one object of a conversation into a buffer."""
        key = pack(self._chance.choice(names_of(*self._talk())), SPACE)
        with self._call("get"):
            size = self.store.get_into(key, self._room)
            self.tally.count("get", "ok")
            self._check("get", key, self._room[:size])

    def look(self) -> None:
        """Ask what there is, in the ways there are."""
        keys = [kept_name(self.number, number) for number in self.kept[-8:]]
        with self._call("look"):
            self.store.exists_batch(keys)
            self.store.match_prefix(keys)
            self.store.stat(keys[0]) if keys else None
            self.tally.count("look", "ok")

    def _check(self, kind: str, key: bytes, found: Any) -> None:
        if not is_right(key, found):
            self.tally.count(kind, "wrong")
            self.say(f"wrong: {kind} of {key!r}: {len(found)} bytes, {bytes(found[:32])!r}")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> None:
    """Work until the end; an exception that is not of moonpool's is a finding."""
    options = json.loads(sys.argv[1])
    faulthandler.enable()  # who ends a call that hangs with SIGABRT sees where it hung
    try:
        Client(options).run()
    except Exception:
        with Path(options["ledger"]).open("a") as ledger:
            text = traceback.format_exc().strip().replace("\n", " | ")
            ledger.write(f"! client {options['number']}: untyped: {text}\n")
        raise


if __name__ == "__main__":
    main()
