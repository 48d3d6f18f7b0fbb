"""How a dummy client finds its pool: it asks the ``mooncake_client`` of its host."""

from __future__ import annotations

import json
import urllib.request
from typing import Final

from moonpool.errors import MasterUnreachableError

PATH: Final = "/moonpool/client"
ANSWER_BYTES_MAX: Final = 65_536


def ask_client(server_address: str, timeout_s: float = 5.0) -> dict[str, str]:
    """Return what a ``mooncake_client`` at host:port says of its pool: ``master_server_address``,
    ``metadata_server`` and ``tenant_id``. Raises MasterUnreachableError."""
    url = f"http://{server_address}{PATH}"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            found = json.loads(reply.read(ANSWER_BYTES_MAX))
        names = ("master_server_address", "metadata_server", "tenant_id")
        return {name: str(found[name]) for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MasterUnreachableError(f"no mooncake_client at {server_address}: {error}") from None
