"""What the commands say to bad input: exit code 2 and one line that names key and values."""

import json
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.adversarial.harness import ROOT, Cluster, environment


@dataclass(frozen=True)
class Case:
    """One command line; ``names`` must all be in the one line on stderr."""

    name: str
    words: list[str]
    names: list[str]
    env: dict[str, str] = field(default_factory=dict)
    code: int = 2
    lines: int | None = 1


def cases(place: Path, taken: int, master: str) -> list[Case]:
    """Return the command lines."""

    def file(name: str, text: str) -> str:
        path = place / name
        path.write_text(text)
        return str(path)

    m, n, port = ["master"], ["node"], ["--port", "0", "--http-port", "0"]
    return [
        Case("port is text", [*m, "--port", "abc"], ["port", "65535"]),
        Case("port too large", [*m, "--port", "65536"], ["port", "65535"]),
        Case("port negative", [*m, "--port", "-1"], ["port", "65535"]),
        Case("http port", [*m, "--http-port", "1e3"], ["http", "port", "65535"]),
        Case("watermark over one", [*m, *port, "--watermark-high", "1.5"], ["watermark", "1"]),
        Case("watermark is NaN", [*m, *port, "--watermark-high", "nan"], ["watermark", "1"]),
        Case(
            "watermarks crossed",
            [*m, *port, "--watermark-high", "0.5", "--watermark-low", "0.8"],
            ["watermark_low", "watermark_high"],
        ),
        Case("put timeout zero", [*m, *port, "--put-timeout-s", "0"], ["timeout", "86400"]),
        Case("put timeout inf", [*m, *port, "--put-timeout-s", "inf"], ["timeout", "86400"]),
        Case("port in use", [*m, "--port", str(taken), "--http-port", "0"], ["port", str(taken)]),
        Case("http in use", [*m, "--port", "0", "--http-port", str(taken)], [str(taken)]),
        Case("variable", [*m, "--http-port", "0"], ["65535"], {"MOONPOOL_MASTER_PORT": "x"}),
        Case("no such host", [*m, *port, "--host", "no.such.host.invalid"], ["host"]),
        Case("not our address", [*m, *port, "--host", "203.0.113.7"], ["host"]),
        Case("no config file", [*m, "--config", str(place / "none.toml")], ["none.toml"]),
        Case(
            "unknown key",
            [*m, "--config", file("a.toml", "[master]\nprot = 1\n")],
            ["prot", "port"],
        ),
        Case("unknown role", [*m, "--config", file("b.toml", "[mister]\nport = 1\n")], ["mister"]),
        Case("no TOML", [*m, "--config", file("c.toml", "[master\nport = = 1\n")], ["c.toml"]),
        Case("no JSON", [*m, "--config", file("d.json", '{"master": ')], ["d.json"]),
        Case(
            "wrong type in file",
            [*m, "--config", file("e.json", '{"master": {"port": [1]}}')],
            ["port", "65535"],
        ),
        Case("binary", [*m, "--config", file("f.toml", "\x00\ufffd\x01")], ["f.toml"]),
        Case("role is a list", [*m, "--config", file("g.json", '{"master": []}')], ["master"]),
        Case("directory as config", [*m, "--config", str(place)], [place.name]),
        Case("size zero", [*n, "--size", "0"], ["size"]),
        Case("size negative", [*n, "--size", "-4GB"], ["size", "GB"]),
        Case("size unit", [*n, "--size", "4XB"], ["size", "GB"]),
        Case("size NaN", [*n, "--size", "nanGB"], ["size", "GB"]),
        Case("size endless", [*n, "--size", "1e999GB"], ["size", "GB"]),
        Case("size beyond memory", [*n, *port[:2], "--size", "900000TB"], ["size"]),
        Case("segment size", [*n, "--segment-size", "1"], ["segment_size"]),
        Case("master's address", [*n, "--master", "nowhere:x"], ["master", "host:port"]),
        Case("master's port", [*n, "--master", "127.0.0.1:70000"], ["master", "host:port"]),
        Case(
            "advertise",
            [*n, "--port", "0", "--master", master, "--size", "16MB", "--advertise", "a:b:c",
             "--segment-dir", str(place / "seg3")],
            ["advertise"],
        ),
        Case(
            "node's port in use",
            [*n, "--port", str(taken), "--master", master, "--size", "16MB",
             "--segment-dir", str(place / "seg1")],
            ["port", str(taken)],
        ),
        Case(
            "segment directory is a file",
            [*n, "--port", "0", "--master", master, "--size", "16MB",
             "--segment-dir", file("plain", "x")],
            ["segment_dir"],
        ),
        Case(
            "name with a slash",
            [*n, "--port", "0", "--master", master, "--size", "16MB", "--name", "../evil",
             "--segment-dir", str(place / "seg2")],
            ["name"],
        ),
        Case("unknown flag", [*m, "--prot", "1"], ["--prot"], lines=None),
        Case("unknown command", ["mister"], ["mister"], lines=None),
        Case("put without file", ["put", "k"], ["file"], lines=None),
        Case("put of no file", ["put", "k", str(place / "absent"), "--master", master], ["absent"]),
        Case("put empty key", ["put", "", __file__, "--master", master], ["key"]),
        Case("put long key", ["put", "x" * 4097, __file__, "--master", master], ["4096"]),
        Case("get empty key", ["get", "", "--master", master], ["key"]),
        Case(
            "replicas",
            ["put", "k", __file__, "--replicas", "0", "--master", master],
            ["replicas"],
        ),
        Case("ls limit", ["ls", "--limit", "-1", "--master", master], ["limit"], lines=None),
        Case("ls namespace", ["ls", "--namespace", "xyz", "--master", master], ["namespace"]),
        Case("bad master", ["ls", "--master", "nowhere:x"], ["host:port"]),
        Case("get of nothing", ["get", "absent", "--master", master], ["absent"], code=1),
        Case("rm of nothing", ["rm", "absent", "--master", master], ["absent"], code=1),
        Case("stat of nothing", ["stat", "absent", "--master", master], ["absent"], code=1),
        Case("no master", ["ls", "--master", f"127.0.0.1:{free_port()}"], ["127.0.0.1"], code=1),
        Case("status of none", ["status", "--master", f"127.0.0.1:{free_port()}"], ["127"], code=1),
    ]  # fmt: skip


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def run(made: list[Case]) -> list[tuple[int, str]]:
    """Run command lines; return exit code and stderr of each."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.adversarial.worker",
            "cli",
            json.dumps({"cases": [(case.words, case.env) for case in made]}),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
        env=environment() | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        cwd=ROOT,
    )
    results: list[tuple[int, str]] = json.loads(done.stdout)
    return results


def problem_of(case: Case, code: int, errors: str) -> str:
    """Return what is wrong with the answer to a command line, or ""."""
    lines = [line for line in errors.splitlines() if line.strip()]
    if code != case.code:
        return f"exit code {code} instead of {case.code}"
    if "Traceback" in errors:
        return "a traceback"
    if case.lines is not None and len(lines) != case.lines:
        return f"{len(lines)} lines instead of {case.lines}"
    missing = [word for word in case.names if word not in errors]
    return f"does not name {missing}" if missing else ""


def test_bad_command_lines(shared: Cluster, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        made = cases(tmp_path, sock.getsockname()[1], shared.address)
        answers = run(made)
    failed = [
        f"[{case.name}] {problem}: {errors.strip()[-600:]!r}"
        for case, (code, errors) in zip(made, answers, strict=True)
        if (problem := problem_of(case, code, errors))
    ]
    assert not failed, "\n" + "\n".join(failed)


def test_put_ls_get_stat_rm_by_hand(shared: Cluster, tmp_path: Path) -> None:
    value = bytes(range(256)) * 100
    (tmp_path / "in").write_bytes(value)
    target = ["--master", shared.address]

    def moonpool(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "moonpool.cli", *words, *target],
            capture_output=True,
            timeout=20,
            check=False,
            env=environment(),
            cwd=ROOT,
        )

    key = "-odd key/é\t\x1b[31m"
    assert moonpool("put", "--", key, str(tmp_path / "in")).returncode in (0, 2)
    key = "odd key/é\x1b[31m"
    assert moonpool("put", key, str(tmp_path / "in")).returncode == 0
    assert moonpool("put", key, str(tmp_path / "in")).returncode == 1
    assert moonpool("get", key).stdout == value
    listed = moonpool("ls", "odd", "--json")
    assert listed.returncode == 0
    assert json.loads(listed.stdout)
    plain = (moonpool("ls", "odd"), moonpool("stat", key))
    assert moonpool("stat", key, "--json").returncode == 0
    assert moonpool("rm", key).returncode == 0
    assert moonpool("get", key).returncode == 1
    assert json.loads(moonpool("status", "--json").stdout)
    assert not any(b"\x1b[31m" in p.stdout for p in plain), "keys reach the terminal as they are"
