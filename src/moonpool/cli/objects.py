"""``moonpool put | get | ls | stat | rm``: the pool by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.cli.output import (
    NOT_WELL,
    fail,
    print_json,
    print_table,
    printable,
    reports_errors,
    size_text,
)
from moonpool.cli.pool import Json, Master, connect
from moonpool.errors import ConfigError, LeasedError, NotFoundError, NotReadyError

if TYPE_CHECKING:
    from moonpool.core.messages import ObjectInfo

STANDARD_STREAM = Path("-")
REMOVE_FAILURES = {
    NotFoundError.code: "not in the pool",
    LeasedError.code: "being read; --force removes it all the same",
    NotReadyError.code: "its put has not ended yet",
}
Key = Annotated[str, typer.Argument(help="A name, or namespace/digest in hexadecimal.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("put")(put)
    app.command("get")(get)
    app.command("ls")(ls)
    app.command("stat")(stat)
    app.command("rm")(rm)


@reports_errors
def put(
    key: Key,
    file: Annotated[Path, typer.Argument(help="The file to store; - for stdin.")],
    replicas: Annotated[int, typer.Option(help="How many copies, on different hosts.")] = 1,
    pin: Annotated[bool, typer.Option("--pin", help="Keep it from eviction for good.")] = False,
    soft_pin: Annotated[
        float,
        typer.Option(help="Or for so many seconds, unless nothing else is left.", metavar="S"),
    ] = 0.0,
    session: Annotated[str, typer.Option(help="The session that uses it.", metavar="NAME")] = "",
    master: Master = None,
) -> None:
    """Store a file under a key. A key that exists keeps its bytes: exit code 1."""
    from moonpool.client.wishes import Wishes
    from moonpool.core.keys import parse

    try:
        value = sys.stdin.buffer.read() if file == STANDARD_STREAM else file.read_bytes()
    except OSError as error:
        raise ConfigError(f"file: {file} cannot be read: {error.strerror}") from None
    with connect(master) as store:
        wishes = Wishes(replicas, pinned=pin, soft_pin_s=soft_pin)
        if not store.put(parse(key), value, wishes=wishes):
            fail(f"{key} exists already; its bytes were kept", NOT_WELL)
        if session:
            store.use_session(session, [parse(key)])
        hosts = store.stat(parse(key)).hosts if replicas > 1 else 1
    if replicas > 1 and hosts < replicas:
        there = f"{hosts} of {replicas} copies are there"
        typer.echo(f"moonpool: {printable(key)}: {there}; more as hosts join", err=True)


@reports_errors
def get(
    key: Key,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write it; - for stdout.")
    ] = STANDARD_STREAM,
    master: Master = None,
) -> None:
    """Write an object's bytes to a file or stdout."""
    from moonpool.core.keys import parse

    with connect(master) as store:
        value = store.get(parse(key))
    if output == STANDARD_STREAM:
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(value)
    except OSError as error:
        raise ConfigError(f"output: {output} cannot be written: {error.strerror}") from None


@reports_errors
def ls(
    prefix: Annotated[str, typer.Argument(help="Only names that start with this.")] = "",
    namespace: Annotated[
        str | None,
        typer.Option(help="Only this namespace, in hexadecimal; '' for keys of people."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Print this many at most; 0 for all.", min=0)] = 1000,
    as_json: Json = False,
    master: Master = None,
) -> None:
    """List objects, the oldest first."""
    from itertools import islice

    wanted = _namespace(namespace)
    with connect(master) as store:
        found = store.list(prefix, wanted)
        infos = [_plain(info) for info in islice(found, limit or None)]
    if as_json:
        print_json(infos)
        return
    rows = [
        [
            info["key"],
            size_text(info["size"]),
            f"{info['used_s_ago']:.0f} s ago",
            f"{info['hosts']}/{info['replicas']}",
        ]
        for info in infos
    ]
    print_table(["key", "size", "used", "replicas"], rows)


@reports_errors
def stat(key: Key, as_json: Json = False, master: Master = None) -> None:
    """Tell what is known of an object."""
    from moonpool.core.keys import parse

    with connect(master) as store:
        info = _plain(store.stat(parse(key)))
    if as_json:
        print_json(info)
    else:
        print_table(["", ""], [[name, str(value)] for name, value in info.items()])


@reports_errors
def rm(
    keys: Annotated[list[str], typer.Argument(help="What to remove.", metavar="KEY...")],
    force: Annotated[bool, typer.Option("--force", help="Even while it is being read.")] = False,
    master: Master = None,
) -> None:
    """Remove objects."""
    from moonpool.core.keys import parse
    from moonpool.errors import error_for

    with connect(master) as store:
        codes = store.remove_batch([parse(key) for key in keys], force)
    failed = [(key, code) for key, code in zip(keys, codes, strict=True) if code]
    for key, code in failed:
        why = REMOVE_FAILURES.get(code) or type(error_for(code, "")).__name__
        typer.echo(f"moonpool: {printable(key)}: {why} ({code})", err=True)
    if failed:
        raise typer.Exit(NOT_WELL)


def _namespace(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigError(f"namespace: {text!r} is not allowed; allowed: hexadecimal") from None


def _plain(info: ObjectInfo) -> dict[str, Any]:
    """Return an object's facts under their names, with keys as people write them."""
    from moonpool.core.keys import readable

    plain = {name: getattr(info, name) for name in info.__struct_fields__}
    plain["key"] = readable(info.key)
    plain["parent"] = readable(info.parent) if info.parent else ""
    plain["checksum"] = f"{info.checksum:016x}"
    return {
        name: value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
        for name, value in plain.items()
    }
