"""Flags made from a role's configuration, so that no key is spelt twice."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from moonpool import config_values
from moonpool.cli.output import reports_errors, size_text
from moonpool.config import RoleConfig, load

C = TypeVar("C", bound=RoleConfig)


def command_of(
    cls: type[C],
    run: Callable[[C], None],
    *,
    help_text: str,
    config_file: bool = True,
    names: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """Return a command with a flag for each key of ``cls`` that calls ``run`` with the result.

    names: flags that are not called like their key, by key.
    """

    @reports_errors
    def command(**flags: Any) -> None:
        file = flags.pop("config", None)
        # An empty list is what Typer gives for a flag that may be repeated and was not given.
        given = {key: value for key, value in flags.items() if value not in (None, [])}
        run(load(cls, file=file, flags=given))

    parameters = [_parameter(field, names or {}) for field in dataclasses.fields(cls)]
    if config_file:
        parameters.insert(0, _CONFIG)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = help_text
    return command


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None, typer.Option("--config", help="TOML, JSON or YAML file", metavar="FILE")
    ],
)


def _parameter(field: dataclasses.Field[Any], names: Mapping[str, str]) -> inspect.Parameter:
    flag = names.get(field.name, f"--{field.name.replace('_', '-')}")
    kind: Any = str | None
    default: Any = None
    if isinstance(field.default, bool):
        kind, flag = bool | None, f"{flag}/--no-{flag.removeprefix('--')}"
    elif isinstance(field.default, tuple):
        kind, default = list[str], []
    metavar = None if isinstance(field.default, bool) else field.name.upper()
    option = typer.Option(flag, help=_help(field), show_default=False, metavar=metavar)
    annotation = Annotated[kind, option]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _help(field: dataclasses.Field[Any]) -> str:
    about: str = field.metadata["about"]
    default: Any = field.default
    if default in ("", ()):
        return about
    is_size = field.metadata["check"] is config_values.size
    return f"{about} (default: {size_text(default) if is_size else default})"


def log_to_stderr() -> None:
    """Send what services log to stderr, one line each, with the time."""
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
