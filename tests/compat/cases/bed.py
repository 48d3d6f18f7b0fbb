"""What cases stand on: a connected store, guarded memory, and what is known to differ."""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

LOCAL_BUFFER = 16 << 20
GUARD = 64
GUARD_BYTE = 0xA5
WAIT_S = 60.0
store: Any = importlib.import_module("mooncake.store")
T = TypeVar("T")


class Memory:
    """Registered memory between guard bytes, with content that differs from place to place."""

    def __init__(self, api: Api, nbytes: int, *, register: bool = True) -> None:
        self._api = api
        self._whole = np.full(nbytes + 2 * GUARD, GUARD_BYTE, np.uint8)
        self.bytes = self._whole[GUARD : GUARD + nbytes]
        self.bytes[:] = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
        self.at = int(self.bytes.ctypes.data)
        self.nbytes = nbytes
        self.registered = register
        if register:
            assert api.s.register_buffer(self.at, nbytes) == 0

    def __getitem__(self, place: slice) -> bytes:
        return bytes(self.bytes[place].tobytes())

    def check(self) -> None:
        """Fail if a byte beside the memory was written."""
        assert (self._whole[:GUARD] == GUARD_BYTE).all(), "written in front of a buffer"
        assert (self._whole[-GUARD:] == GUARD_BYTE).all(), "written behind a buffer"

    def close(self) -> None:
        """Check, and unregister it."""
        self.check()
        if self.registered:
            assert self._api.s.unregister_buffer(self.at) == 0


class Api:
    """The implementation under test: ``module``, a connected store ``s``, and its surroundings.

    owner: the name of the segment of another process; empty if there is none.
    """

    def __init__(self, master: str, owner: str) -> None:
        self.module = store
        self.master = master
        self.owner = owner
        self.real = not store.MooncakeDistributedStore.__module__.startswith("moonpool")
        self.store = store.MooncakeDistributedStore()
        self._memories: list[Memory] = []
        self._stores: list[Any] = []
        self._numbers = itertools.count()

    def connect(self, nbytes: int) -> int:
        """Set the store up, lending so many bytes."""
        return int(self.setup(self.store, nbytes))

    def setup(self, which: Any, nbytes: int = 0, local: int = LOCAL_BUFFER, **more: Any) -> int:
        """Set a store up."""
        place = "127.0.0.1", "P2PHANDSHAKE", nbytes, local, "tcp", "", self.master
        return int(which.setup(*place, **more))

    @property
    def s(self) -> Any:
        """The connected store."""
        return self.store

    def another(self, nbytes: int = 0, **more: Any) -> Any:
        """Return one more connected store; it is closed after the case."""
        made = store.MooncakeDistributedStore()
        self._stores.append(made)
        assert self.setup(made, nbytes, **more) == 0
        return made

    def new(self) -> Any:
        """Return a store that is not set up."""
        made = store.MooncakeDistributedStore()
        self._stores.append(made)
        return made

    def memory(self, nbytes: int, *, register: bool = True) -> Memory:
        """Return memory; it is checked and unregistered after the case."""
        made = Memory(self, nbytes, register=register)
        self._memories.append(made)
        return made

    def key(self) -> str:
        """Return a key that no other case has."""
        return f"key-{next(self._numbers)}"

    def config(self, **fields: Any) -> Any:
        """Return a ReplicateConfig."""
        made = store.ReplicateConfig()
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def eventually_put(self, key: str, value: bytes) -> None:
        """Put where something has to go first: Mooncake answers -200 until that has happened."""
        eventually(lambda: self.s.put(key, value) == 0)

    def differs(self, name: str, real: T, ours: T) -> T:
        """Return what is expected of this implementation where the two are known to differ;
        ``name`` is that of a row in docs/mooncake.md."""
        return real if self.real else ours

    def before(self) -> None:
        """Begin a case with an empty pool."""
        assert self.s.remove_all(True) >= 0

    def after(self) -> None:
        """End a case: its stores are closed, its memory must be whole."""
        for memory in self._memories:
            memory.close()
        for each in self._stores:
            each.close()
        self._memories.clear()
        self._stores.clear()

    def close(self) -> None:
        """Close the store."""
        self.s.close()


def raises(
    kind: type[BaseException], call: Callable[..., object], *arguments: object, **named: object
) -> None:
    """Fail unless a call raises exactly this."""
    try:
        found = call(*arguments, **named)
    except kind as error:
        assert type(error) is kind, f"{type(error).__name__}: {error}"  # noqa: PT017
        return
    raise AssertionError(f"{kind.__name__} was not raised; returned {found!r}")


def eventually(check: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT_S
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError("not in time")
        time.sleep(0.02)


def same(found: object, wanted: object) -> None:
    """Fail unless two things are equal, and say what they are."""
    assert found == wanted, f"{found!r} is not {wanted!r}"


def log(text: str) -> None:
    """Write to where the worker's log is."""
    sys.stderr.write(text + "\n")
