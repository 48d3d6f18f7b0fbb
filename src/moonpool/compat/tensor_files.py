"""Tensors to and from files of the safetensors format. Needs the package of that name."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from moonpool.compat.base import Base
from moonpool.compat.casting import Parameter, anything, call, refusal, text
from moonpool.compat.codes import INVALID, OK
from moonpool.compat.tensors import got, put_whole
from moonpool.compat.zerocopy import KEY

NO_TENSOR = -1100
_log = logging.getLogger(__name__)


class TensorFiles(Base):
    """The calls about files."""

    @call(KEY, Parameter("file_name", anything, None))
    def save_tensor_to_safetensor(self, key: str, file_name: Any) -> int:
        """Write a tensor to a file, which is called like the key if it is not named; return 0 or a
        code."""
        if self._connected is None:
            return INVALID
        tensor = got(self._connected, key)
        if tensor is None:
            return NO_TENSOR
        try:
            _library().save_file({key: tensor.contiguous()}, str(file_name or key))
        except Exception as error:  # noqa: BLE001 - the library's own, not documented
            _log.warning("%s cannot be written: %s", file_name or key, error)
            return INVALID
        return OK

    def load_tensor_from_safetensor(self, *args: Any, **named: Any) -> Any:
        """Read a tensor from a file and put it; return it, or None. Takes ``key``, which is the
        file's name if it is not given, and ``file_name``. A file that has no tensor of this name
        gives its first."""
        key, name = _arguments(args, named)
        if self._connected is None or not Path(name).is_file():
            return None
        try:
            found = _library().load_file(name)
        except Exception as error:  # noqa: BLE001 - the library's own, not documented
            _log.warning("%s cannot be read: %s", name, error)
            return None
        wanted = key or name
        tensor = found.get(wanted, next(iter(found.values()), None))
        code = INVALID if tensor is None else put_whole(self._connected, wanted, tensor)
        return None if code else tensor


def _library() -> Any:
    return importlib.import_module("safetensors.torch")


def _arguments(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[str | None, str]:
    given = dict(zip(("key", "file_name"), args, strict=False)) | named
    if len(args) > 2 or "file_name" not in given or set(given) - {"key", "file_name"}:
        raise TypeError(refusal("load_tensor_from_safetensor", (KEY, Parameter("file_name", text))))
    key = given.get("key")
    return None if key is None else text(key), text(given["file_name"])
