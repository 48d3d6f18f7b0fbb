"""Models for tests: random weights, other attention."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def mistral(llama: Path, window: int) -> Path:
    """Return a Mistral with the weights of a Llama, every layer of which attends to ``window``
    tokens only."""
    target = llama.with_name(f"mistral-{window}")
    if target.exists():
        return target
    shutil.copytree(llama, target)
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    config |= {"sliding_window": window}
    (target / "config.json").write_text(json.dumps(config))
    return target
