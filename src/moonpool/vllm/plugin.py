"""The ``vllm.general_plugins`` entry point: makes the connector known by its name."""

from __future__ import annotations

NAME = "MoonpoolConnector"


def register() -> None:
    """Register the connector with vLLM's factory. vLLM may call this several times a process."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    # A second registration of the same name is an error in the factory.
    if NAME not in KVConnectorFactory._registry:  # noqa: SLF001
        KVConnectorFactory.register_connector(NAME, "moonpool.vllm.connector", NAME)
