"""A message of any kind, made from its fields' types: kinds that come later are fuzzed as well."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
import msgspec.structs

KEY = b"\0key"
_VALUES: dict[Any, Any] = {int: 1, float: 1.0, str: "n", bytes: KEY, bool: True}


def sample_of(kind: Any) -> Any:
    """Return a value of a message's field, or a message."""
    if kind in _VALUES:
        return _VALUES[kind]
    if get_origin(kind) is list:
        return [sample_of(get_args(kind)[0])] * 2
    if get_origin(kind) is dict:
        return {sample_of(get_args(kind)[0]): sample_of(get_args(kind)[1])}
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: sample_of(field.type) for field in fields})
