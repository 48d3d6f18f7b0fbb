"""The environment in which programs find moonpool where they look for Mooncake."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import moonpool

SHIM = Path(__file__).parent / "shim"


def exports(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables to set, for programs of this interpreter and of others."""
    environ = os.environ if env is None else env
    paths = [str(SHIM)]
    if not _is_installed():
        paths.append(str(Path(moonpool.__file__).parents[1]))
    return {
        "PYTHONPATH": _before(paths, environ.get("PYTHONPATH", "")),
        "PATH": _before([str(SHIM / "bin")], environ.get("PATH", "")),
        "MOONPOOL_PYTHON": sys.executable,
    }


def as_shell(variables: Mapping[str, str]) -> str:
    """Return lines that a shell evaluates."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def _before(first: list[str], rest: str) -> str:
    kept = [each for each in rest.split(os.pathsep) if each and each not in first]
    return os.pathsep.join([*first, *kept])


def _is_installed() -> bool:
    """Tell whether this interpreter finds moonpool by itself."""
    home = str(Path(moonpool.__file__).parents[1])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return home in sys.path and home not in given
