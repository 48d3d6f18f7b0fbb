"""Lets several engines with NIXL or Mooncake share a few cores; on their ``PYTHONPATH`` only.

vLLM's NIXL worker binds itself to one core, the same for every engine, and NIXL's thread keeps
another one busy while nothing happens. Neither is what these tests are about.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

POLL_US = 2000
"""How long NIXL's thread sleeps at most between two looks."""
MODULE = "nixl_cu12._bindings"

os.sched_setaffinity = lambda *_: None


class _Patience(importlib.machinery.ExtensionFileLoader):
    """Replaces the delay that NIXL's Python class fixes at 0."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        agent = module.nixlAgent

        def patient(name: str, config: Any) -> Any:
            config.pthrDelay = POLL_US
            return agent(name, config)

        module.nixlAgent = patient  # type: ignore[attr-defined]


def _without_accelerator() -> None:
    """vLLM's MooncakeConnector asks for the number of its device, which a CPU does not have."""
    import torch

    if not torch.accelerator.is_available():
        torch.accelerator.current_device_index = lambda: 0


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "mooncake.engine":
            _without_accelerator()
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Patience(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder())
