from __future__ import annotations

import importlib
import warnings
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def connector() -> ModuleType:
    """The connector's module with the real vLLM below it."""
    pytest.importorskip("torch")
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    with warnings.catch_warnings():
        # vLLM and what it imports warn about each other's deprecations.
        warnings.simplefilter("ignore")
        importlib.import_module("transformers")
        return importlib.import_module("moonpool.vllm.connector")
