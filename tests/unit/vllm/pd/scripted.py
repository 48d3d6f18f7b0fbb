"""A peer connector that does what a test tells it, by the contract of vLLM's own.

Named and registered like one of vLLM's, so that the composite takes it for one: the scheduler's
side behaves like NixlConnector's, the worker's side moves bytes when the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)


class Meta(KVConnectorMetadata):  # type: ignore[misc]
    """Requests to fill, with their blocks; none: only let the prefill instance know."""

    def __init__(self) -> None:
        self.fills: dict[str, list[int]] = {}


class NixlConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """See the module."""

    newest: ClassVar[dict[str, NixlConnector]] = {}

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.newest[role.name] = self
        self.raises: set[str] = set()
        self.calls: list[str] = []
        self.seen: dict[str, Any] = {}
        self.meta = Meta()
        self.fills: dict[str, list[int]] = {}
        self.notified: list[str] = []
        self.write: Callable[[list[int]], None] = lambda blocks: None
        self.ended = KVConnectorTransferResults()
        self.bad: set[int] = set()

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.raises:
            raise AssertionError(name)

    # --- scheduler ---

    def on_new_request(self, request: Any) -> None:
        self._called("on_new_request")
        self.seen[request.request_id] = request.kv_transfer_params

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        self._called("get_num_new_matched_tokens")
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            count = request.num_prompt_tokens - computed
            if count > 0:
                return count, True
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        self._called("update_state_after_alloc")
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill"):
            (ids,) = blocks.get_unhashed_block_ids_all_groups() if tokens else ([],)
            self.meta.fills[request.request_id] = list(ids)
            params["do_remote_prefill"] = False

    def build_connector_meta(self, output: Any) -> Meta:
        self._called("build_connector_meta")
        meta, self.meta = self.meta, Meta()
        return meta

    def request_finished(self, request: Any, blocks: Any) -> tuple[bool, Any]:
        return self.request_finished_all_groups(request, (blocks,))

    def request_finished_all_groups(self, request: Any, blocks: Any) -> tuple[bool, Any]:
        self._called("request_finished_all_groups")
        sends = (request.kv_transfer_params or {}).get("do_remote_decode")
        if not sends or request.status.name != "FINISHED_LENGTH_CAPPED":
            return False, None
        return True, {"do_remote_prefill": True, "remote_block_ids": list(blocks)}

    # --- worker ---

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._called("start_load_kv")
        assert isinstance(self._connector_metadata, Meta)
        for request_id, blocks in self._connector_metadata.fills.items():
            if blocks:
                self.fills[request_id] = blocks
            else:
                self.notified.append(request_id)

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None:
        assert self._connector_metadata is not None

    def arrive(self, request_id: str, *, failed: bool = False) -> None:
        """The transfer of a request ends."""
        blocks = self.fills.pop(request_id)
        if failed:
            self.bad |= set(blocks)
            self.ended.failed_recving.add(request_id)
        else:
            self.write(blocks)
        self.ended.finished_recving.add(request_id)

    def get_transfer_results(self, finished: set[str]) -> KVConnectorTransferResults:
        self._called("get_transfer_results")
        ended, self.ended = self.ended, KVConnectorTransferResults()
        return ended

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self.bad = self.bad, set()
        return bad
