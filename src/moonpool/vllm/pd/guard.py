"""Keeps what a foreign connector raises from the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Guarded:
    """A connector whose methods return something harmless instead of raising."""

    def __init__(self, inner: Any, note: Callable[[str], None]) -> None:
        """note: told the method's name when one has raised, while the exception is handled."""
        self.inner, self._note = inner, note

    def call(self, name: str, instead: Any, *args: Any, **options: Any) -> Any:
        """Call a method; return ``instead`` if it raises."""
        try:
            return getattr(self.inner, name)(*args, **options)
        except Exception:  # noqa: BLE001 - a peer must never end the engine
            self._note(name)
            return instead

    def on_new_request(self, request: Any) -> None:
        """See vLLM's KVConnectorBase_V1, as for all below."""
        self.call("on_new_request", None, request)

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Nothing is offered instead."""
        found: tuple[int | None, bool]
        found = self.call("get_num_new_matched_tokens", (0, False), request, computed)
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        """A request whose blocks are not asked for is computed past its deadline."""
        self.call("update_state_after_alloc", None, request, blocks, tokens)

    def build_connector_meta(self, output: Any) -> Any:
        """None instead."""
        return self.call("build_connector_meta", None, output)

    def update_connector_output(self, output: Any) -> None:
        """Nothing instead."""
        self.call("update_connector_output", None, output)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, Any]:
        """The blocks are free at once instead."""
        found: tuple[bool, Any]
        found = self.call("request_finished_all_groups", (False, None), request, block_ids)
        return found
