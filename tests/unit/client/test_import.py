from __future__ import annotations

import subprocess
import sys

import pytest

import moonpool


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_importing_moonpool_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'msgspec', 'asyncio', 'aiohttp', 'uvloop', 'torch', 'vllm', 'numba'}"
    assert run(f"import sys, moonpool; print({heavy} & set(sys.modules))") == "set()"


def test_errors_need_nothing_heavy_either() -> None:
    code = "import sys; from moonpool import NotFoundError; print('numpy' in sys.modules)"
    assert run(code) == "False"


def test_using_a_store_needs_no_server_parts() -> None:
    heavy = "{'aiohttp', 'uvloop', 'torch', 'vllm', 'numba', 'prometheus_client', 'typer', 'rich'}"
    assert run(f"import sys; from moonpool import Store; print({heavy} & set(sys.modules))") == (
        "set()"
    )


@pytest.mark.parametrize("name", moonpool.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(moonpool, name) is not None
    assert name in dir(moonpool)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Stroe'"):
        moonpool.Stroe  # noqa: B018
