"""What the Mooncake API does, asserted on Mooncake's own wheel and on moonpool alike.

A case is a function of an ``Api``. It runs in a worker's process, by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

MODULES = (
    "copying",
    "looking",
    "zerocopy",
    "configs",
    "lives",
    "sessions",
    "places",
    "memory",
    "tensors",
    "engram",
    "beside",
    "leases",
    "tenants",
    "hanging",
    "random_calls",
    "plain",
)
CASES: dict[str, Callable[..., Any]] = {}


def load() -> dict[str, Callable[..., Any]]:
    """Return all cases by name. Needs a ``mooncake.store``."""
    for name in MODULES:
        module = importlib.import_module(f"{__name__}.{name}")
        for case, function in vars(module).items():
            if case.startswith("case_"):
                CASES[f"{name}.{case.removeprefix('case_')}"] = function
    return CASES
