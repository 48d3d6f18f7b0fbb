"""The connector's logger: below ``vllm``, so that vLLM's own handlers and levels apply."""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.moonpool")
