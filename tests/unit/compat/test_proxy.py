"""The flags of Mooncake's proxy, as the router's configuration."""

from __future__ import annotations

import pytest

from moonpool.compat.commands.proxy import config_of, main


def test_hosts_and_ports_are_paired() -> None:
    line = "--port 8001 --host 0.0.0.0 --prefiller-hosts a b --prefiller-ports 1 2"
    found = config_of([*line.split(), "--decoder-host", "c", "--decoder-port", "3"])
    assert (found.host, found.port) == ("0.0.0.0", 8001)
    assert (found.prefill, found.decode) == (("http://a:1", "http://b:2"), ("http://c:3",))


def test_defaults_are_the_proxys() -> None:
    found = config_of([])
    assert (found.port, found.prefill) == (8000, ("http://localhost:8100",))
    assert found.decode == ("http://localhost:8200",)


def test_hosts_without_ports_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prefiller-hosts", "a", "b", "--prefiller-ports", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
