"""``transfer_engine_topology_dump``: which NICs are near which memory, as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from moonpool.compat.engine.topology import topology_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it."""
    parser = argparse.ArgumentParser(prog="transfer_engine_topology_dump")
    parser.add_argument("--device-name", default="", help="only these RDMA devices, with commas")
    parser.add_argument("--backend", choices=("auto", "te", "tent"), default="auto")
    parser.add_argument("--use-custom-topo", action="store_true")
    parser.add_argument("--custom-topo-json")
    said = parser.parse_args(arguments)
    if said.use_custom_topo or said.custom_topo_json or said.backend == "tent":
        print(  # noqa: T201
            "transfer_engine_topology_dump: there is one engine here and no custom topology",
            file=sys.stderr,
        )
    print(topology_json(said.device_name))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
