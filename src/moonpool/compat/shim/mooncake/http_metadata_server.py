"""``mooncake.http_metadata_server``."""

import enum
import sys
import threading

from moonpool.compat.commands.metadata_server import MetadataServer, main

__all__ = ["KVBootstrapServer", "KVPoll", "main"]


class KVPoll(enum.Enum):
    """What ``poll`` says."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class KVBootstrapServer(MetadataServer):
    """The server in a thread of a program's own."""

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        super().__init__(host, port)

    def run(self) -> threading.Thread | None:
        """Start; return the thread. Raises OSError."""
        self.start()
        return self._thread

    def poll(self) -> KVPoll:
        """Return Success while it serves, Failed otherwise."""
        return KVPoll.Success if self.alive else KVPoll.Failed


if __name__ == "__main__":
    sys.exit(main())
