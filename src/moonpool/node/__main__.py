"""``python -m moonpool.node [key=value ...]``: the node without the command line's comforts."""

from __future__ import annotations

import logging
import sys

from moonpool.config import NodeConfig, load
from moonpool.errors import ConfigError, MoonpoolError
from moonpool.node.daemon import run


def main(arguments: list[str]) -> int:
    """Serve until a signal; return 0, or 2 for a configuration that cannot be used, 1 for a
    failure that ends the node."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    except ValueError:
        print("usage: python -m moonpool.node [key=value ...]", file=sys.stderr)  # noqa: T201
        return 2
    try:
        run(load(NodeConfig, flags=flags))
    except ConfigError as error:
        print(f"moonpool node: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except MoonpoolError as error:
        print(f"moonpool node: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
