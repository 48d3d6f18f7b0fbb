"""What Mooncake's programs and API are configured with: flags, and the arguments of ``setup``."""

from __future__ import annotations

import random
from typing import Any

from moonpool.compat.arguments import setup_of
from moonpool.compat.casting import CastError
from moonpool.compat.commands import master, master_flags
from moonpool.compat.connected import Setup
from moonpool.errors import ConfigError
from tests.fuzz import mutate
from tests.fuzz.config_input import TEXTS
from tests.fuzz.target import REFUSED, TAKEN, Target, require

FLAGS = [*master_flags.ALL]
SETUP: dict[str, Any] = {
    "local_hostname": "h:1",
    "metadata_server": "P2PHANDSHAKE",
    "global_segment_size": "64 MB",
    "local_buffer_size": 1 << 20,
    "protocol": "tcp",
    "rdma_devices": "",
    "master_server_addr": "127.0.0.1:50051",
}


class MooncakeFlags(Target):
    """Command lines of ``mooncake_master``."""

    name = "mooncake_master's flags"
    share = 3.0
    episode = 500

    def take(self, chance: random.Random) -> str:
        words = []
        for _ in range(chance.randrange(1, 5)):
            name = chance.choice(FLAGS)
            # Files and interfaces are the machine's own.
            if name not in ("flagfile", "config_path", "rpc_interface"):
                words += self._flag(chance, name)
        try:
            values, warnings = master.read(words)
            master_flags.config_of(values)
        except ConfigError as error:
            require("\n" not in str(error), f"more than a line: {str(error)[:200]!r}")
            return REFUSED
        require(len(warnings) <= 2 * len(words), "a warning for a word, and no more")
        return TAKEN

    def _flag(self, chance: random.Random, name: str) -> list[str]:
        text = chance.choice((*TEXTS, "10s", "500ms", "0.5", "etcd", "k8s"))
        way = chance.randrange(6)
        if way == 0:
            return [f"-no{name}"]
        if way == 1:
            return [f"--{name.replace('_', '-')}", text]
        if way == 2:
            return [f"-{name}"]
        if way == 3:
            return [f"--{name[:-1]}={text}"]
        return [f"--{name}={text}"]


class MooncakeSetup(Target):
    """Arguments of ``MooncakeDistributedStore.setup``: a dict, or one by one."""

    name = "setup's arguments"
    share = 3.0
    episode = 500

    def take(self, chance: random.Random) -> str:
        changed = mutate.tree(chance, SETUP)
        try:
            if chance.random() < 0.5:
                found = setup_of([changed], {})
            else:
                pairs = [*changed.items()] if isinstance(changed, dict) else [("x", changed)]
                cut = chance.randrange(len(pairs) + 1)
                found = setup_of([value for _, value in pairs[:cut]], dict(pairs[cut:]))
        except (CastError, RuntimeError):
            return REFUSED
        require(isinstance(found, Setup) or found < 0, f"{found!r} is neither a setup nor a code")
        return TAKEN if isinstance(found, Setup) else REFUSED
