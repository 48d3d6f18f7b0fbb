"""``python -m mooncake.vllm_v1_proxy_server``: moonpool's router behind that proxy's flags."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from aiohttp import web

from moonpool.config import RouterConfig, load
from moonpool.errors import ConfigError, MoonpoolError
from moonpool.router.front import Front
from moonpool.router.instance import DECODE, PREFILL


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 0, or 2 for what cannot be."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        _run(config_of(sys.argv[1:] if arguments is None else arguments))
    except MoonpoolError as error:
        print(f"vllm_v1_proxy_server: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def config_of(arguments: Sequence[str]) -> RouterConfig:
    """Return the router's configuration: MOONPOOL_ROUTER_... variables, and what the flags say.
    Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="vllm_v1_proxy_server")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="127.0.0.1")
    for role, port in (("prefiller", 8100), ("decoder", 8200)):
        hosts, ports = (f"--{role}-hosts", f"--{role}-host"), (f"--{role}-ports", f"--{role}-port")
        parser.add_argument(*hosts, nargs="+", default=["localhost"])
        parser.add_argument(*ports, nargs="+", type=int, default=[port])
    said = parser.parse_args(arguments)
    flags = {
        "host": said.host,
        "port": said.port,
        "prefill": _urls("prefiller", said.prefiller_hosts, said.prefiller_ports),
        "decode": _urls("decoder", said.decoder_hosts, said.decoder_ports),
    }
    return load(RouterConfig, flags=flags)


def _urls(role: str, hosts: list[str], ports: list[int]) -> list[str]:
    if len(hosts) != len(ports):
        raise ConfigError(f"--{role}-hosts: {len(hosts)} hosts, but {len(ports)} ports")
    return [f"http://{host}:{port}" for host, port in zip(hosts, ports, strict=True)]


def _run(config: RouterConfig) -> None:
    from moonpool.router.build import front_of
    from moonpool.router.service import Reloader, listen, serve_until_signal

    front = front_of(config)
    _add_health_check(front)
    sock = listen("port", config.host, config.port)
    serve_until_signal(front, sock, Reloader(front, config, lambda: config, None))


def _add_health_check(front: Front) -> None:
    """Add the one page that the proxy has and the router has not."""
    make = front.app

    async def health(_: web.Request) -> web.Response:
        roles = [each.role for each in front.members.instances]
        counts = {"prefill_instances": PREFILL, "decode_instances": DECODE}
        body = {name: roles.count(role) for name, role in counts.items()}
        return web.json_response({"status": "ok", **body})

    def app() -> web.Application:
        made = make()
        made.router.add_get("/healthcheck", health)
        return made

    front.app = app  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
