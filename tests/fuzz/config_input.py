"""Configuration: files, variables and flags, alone and together."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from moonpool import config, config_ha
from moonpool.cli.app import app
from moonpool.errors import ConfigError
from tests.fuzz import mutate
from tests.fuzz.target import REFUSED, TAKEN, Target, require

TEXTS: tuple[str, ...] = (
    "", "0", "1", "-1", "1.5", "1e400", "nan", "inf", "-inf", "true", "no", "64KB", "1.5 GiB",
    "9" * 400, "9" * 5000 + "KB", "1e9999GB", "²GB", "٣MB", "127.0.0.1:50051", "[::1]:1", "h:0",
    "h:70000", "h:²", ":1", "a,b,c", ",", "etcd://h:1,g:2/pool", "kubernetes://ns/lease", "etcd://",
    "etcd://[::1", "http://[", "file:/x", "nixl,mooncake", "shm,shm", "UCX_TLS=rc", "=", "UCX_=",
    "\0", "\n", "é", "\ud800", "x" * 10_000, "/nowhere/x", "/tmp/x", ".", "prefix", "on-evict",
)  # fmt: skip
TOML = """
[node]
name = "n"
size = "64MB"
ssd_size = 1073741824
engines = ["nixl"]
touch_ahead = true
[master]
watermark_high = 0.9
ha = "etcd://h:1"
"""
ENV_TAILS = ("MASTER", "HA", "TOKEN", "NODE_SIZE", "MASTER_PORT", "CLIENT_TRANSPORTS", "NODE_X",
             "ROUTER_BACKENDS", "MASTER_SERVICE_HOST", "MASTER_PORT_1_TCP", "X", "")  # fmt: skip


class Config(Target):
    """What is configured is taken, or refused in one line."""

    name = "configuration"
    share = 10.0
    episode = 500

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="fuzz-"))

    def close(self) -> None:
        shutil.rmtree(self._root)

    def take(self, chance: random.Random) -> str:
        cls = chance.choice([*config.ROLES.values()])
        env = {f"MOONPOOL_{chance.choice(ENV_TAILS)}": self._text(chance)}
        env = env if chance.random() < 0.3 else {}
        keys = [key for key, *_ in config.describe(cls)]
        flags = {chance.choice([*keys, "nothing"]): self._value(chance)}
        file = self._file(chance, env) if chance.random() < 0.3 else None
        try:
            config.load(cls, file=file, flags=flags, env=env)
            if chance.random() < 0.2:
                config.resolve_master(self._text(chance), env)
                config_ha.advertised("h", self._text(chance), 1)
        except ConfigError as error:
            require("\n" not in str(error), f"more than a line: {str(error)[:200]!r}")
            return REFUSED
        return TAKEN

    def _text(self, chance: random.Random) -> str:
        text = chance.choice(TEXTS)
        if chance.random() < 0.4:
            raw = mutate.bytes_of(chance, text.encode("utf-8", "surrogatepass"))
            text = raw.decode("utf-8", "surrogateescape")
        return text

    def _value(self, chance: random.Random) -> Any:
        way = chance.random()
        return self._text(chance) if way < 0.7 else chance.choice(mutate.VALUES)

    def _file(self, chance: random.Random, env: dict[str, str]) -> Path:
        ending = chance.choice((".toml", ".json", ".txt"))
        path = self._root / f"config{ending}"
        if ending == ".json":
            good = {"node": {"name": "n", "size": 5}, "master": {"port": 1}}
            tree = mutate.tree(chance, good, [v for v in mutate.VALUES if type(v) is not bytes])
            raw = json.dumps(tree).encode()
            env["MOONCAKE_CONFIG_PATH"] = str(path)
        else:
            raw = mutate.bytes_of(chance, TOML.encode())
        path.write_bytes(raw)
        return path


class CommandLine(Config):
    """Whole command lines that must fail: with one line, and 2."""

    name = "command lines"
    share = 0.1
    episode = 50

    def take(self, chance: random.Random) -> str:
        command, wrong = chance.choice(
            (("master", "--port"), ("node", "--size"), ("node", "--name"))
        )
        flags = ["--watermark-high", "--ha-lease", "--put-timeout-s"]
        if command == "node":
            flags = ["--segment-size", "--ssd-size", "--master", "--engines", "--ssd-policy"]
        words = [command, f"{chance.choice(flags)}={self._text(chance)}"]
        # One that is always wrong, so that nothing is ever started.
        words += [f"{wrong}={'x/' if wrong == '--name' else 'wrong'}"]
        found = CliRunner().invoke(app, words)
        require(found.exit_code == 2, f"{words}: exit code {found.exit_code}, {found.exception!r}")
        require("Traceback" not in found.output, f"{words}: a traceback")
        return REFUSED
