"""``mooncake.vllm_v1_proxy_server``."""

import sys

from moonpool.compat.commands.proxy import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
