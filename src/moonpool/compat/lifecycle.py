"""Setting up, closing, and what a store says of itself."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from moonpool.compat.arguments import SETUP, setup_of
from moonpool.compat.base import Base
from moonpool.compat.casting import CastError, Parameter, call, i64, refusal, text, u64
from moonpool.compat.codes import INTERNAL, INVALID, OK, code_of
from moonpool.compat.connected import Setup, connect, is_reachable
from moonpool.compat.dummy import ask_client
from moonpool.errors import MoonpoolError

HEALTHY, NOT_SET_UP, NO_MASTER = 0, 1, 2
log = logging.getLogger("moonpool.compat")


class Lifecycle(Base):
    """The calls around all others."""

    def setup(self, *args: Any, **named: Any) -> int:
        """Connect, and lend a segment if one is declared. Takes Mooncake's arguments one by one, or
        a dict of them. Returns 0, or a code."""
        try:
            found = setup_of(args, named)
        except CastError:
            raise TypeError(refusal("setup", SETUP)) from None
        return found if isinstance(found, int) else self._set_up(found)

    @call(
        Parameter("mem_pool_size", u64),
        Parameter("local_buffer_size", u64),
        Parameter("server_address", text),
    )
    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Connect to the pool of a ``mooncake_client`` at an address, which lends the memory."""
        try:
            said = ask_client(server_address)
        except MoonpoolError:
            return INTERNAL
        where = said["metadata_server"], 0, local_buffer_size, "tcp", ""
        setup = Setup("127.0.0.1", *where, said["master_server_address"], said["tenant_id"])
        code = self._set_up(setup)
        return OK if code == OK else INTERNAL

    @call(Parameter("arg0", text), Parameter("arg1", text), Parameter("arg2", u64))
    def init_all(self, protocol: str, devices: str, nbytes: int) -> int:
        """Set up with defaults, the oldest form."""
        master = os.environ.get("MOONCAKE_MASTER", "127.0.0.1:50051")
        return self._set_up(Setup("127.0.0.1", "", nbytes, 16 << 20, protocol, devices, master))

    def _set_up(self, setup: Setup) -> int:
        with self._changing:
            if self._connected is not None:
                return OK
            try:
                self._connected = connect(setup)
            except (MoonpoolError, OSError, ValueError) as error:
                log.warning("setup: %s", error)
                return code_of(error)
        return OK

    @call()
    def close(self) -> int:
        """Give everything back; objects in this client's segment go. Returns 0."""
        with self._changing:
            connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()
        return OK

    @call()
    def health_check(self) -> int:
        """Return 0 if all is well, 1 if not set up, 2 if the master cannot be reached."""
        connected = self._connected
        if connected is None:
            return NOT_SET_UP
        return HEALTHY if is_reachable(connected) else NO_MASTER

    @call()
    def get_hostname(self) -> str:
        """Return ``host:port``, the name of this client's segment; nothing if not set up."""
        return "" if self._connected is None else self._connected.name

    @call()
    def get_offload_rpc_read_count(self) -> int:
        """Return how many reads went through another client's disk: here nodes do that."""
        return 0

    @call(Parameter("arg0", i64))
    def alloc_from_mem_pool(self, nbytes: int) -> int:
        """Return memory of a dummy client's pool: there is none, 0."""
        return INVALID if nbytes < 0 and self._connected is None else 0

    def __del__(self) -> None:
        connected = getattr(self, "_connected", None)
        if connected is not None:
            with contextlib.suppress(Exception):  # the interpreter may be ending
                connected.close()
