"""``mooncake_master``: a moonpool master behind Mooncake's flags."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from moonpool.compat.commands import gflags
from moonpool.compat.commands.master_flags import ALIASES, ALL, FLAGS, HERE_ANYWAY, config_of
from moonpool.config import MasterConfig
from moonpool.config_sources import read_file
from moonpool.errors import ConfigError, MoonpoolError

log = logging.getLogger("moonpool.compat")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 0, or 2 for flags that cannot be used."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    said = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "-help", "--help"} & set(said):
        print(help_text())  # noqa: T201
        return 0
    try:
        values, warnings = read(said)
        config = config_of(values)
        for warning in warnings:
            log.warning("mooncake_master: %s", warning)
        with _metadata_server(values):
            _run(config)
    except MoonpoolError as error:
        print(f"mooncake_master: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def read(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that were said, in the file of --config_path or as flags (which win),
    and warnings of what has no effect. Raises ConfigError."""
    given = gflags.parse(arguments, ALL)
    warnings = list(given.warnings)
    values: dict[str, Any] = {}
    path = given.values.get("config_path")
    if path:
        for name, said in read_file(path).items():
            known = ALIASES.get(name, name)
            if known in ALL:
                values[known] = gflags.value_of(f"{name} in {path}", ALL[known], said)
            else:
                warnings.append(f"{name} in {path} is passed over: there is no such flag")
    values |= given.values
    idle = [name for name in values if name not in FLAGS and name not in HERE_ANYWAY]
    warnings += [f"--{name} has no effect on a moonpool master" for name in idle]
    return values, warnings


def help_text() -> str:
    """Return the flags that do something, and the way to the rest."""
    lines = ["mooncake_master: a moonpool master that is started with Mooncake's flags.", ""]
    lines += [f"  --{name} ({flag.kind}; default {flag.default!r})" for name, flag in FLAGS.items()]
    rest = len(ALL) - len(FLAGS)
    return "\n".join([*lines, "", f"{rest} more flags of Mooncake's are taken and have no effect."])


@contextlib.contextmanager
def _metadata_server(values: dict[str, Any]) -> Iterator[None]:
    if not values.get("enable_http_metadata_server"):
        yield
        return
    from moonpool.compat.commands.metadata_server import MetadataServer

    host = values.get("http_metadata_server_host", FLAGS["http_metadata_server_host"].default)
    port = values.get("http_metadata_server_port", FLAGS["http_metadata_server_port"].default)
    server = MetadataServer(host, port)
    try:
        server.start()
    except OSError as error:
        raise ConfigError(f"--http_metadata_server_port: {port} on {host}: {error}") from None
    try:
        yield
    finally:
        server.close()


def _run(config: MasterConfig) -> None:
    from moonpool.master.daemon import run

    run(config)


if __name__ == "__main__":
    sys.exit(main())
