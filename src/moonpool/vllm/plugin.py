"""The ``vllm.general_plugins`` entry point: makes the connectors known by their names."""

from __future__ import annotations

NAME = "MoonpoolConnector"
PD_NAME = "MoonpoolPDConnector"
_MODULES = {NAME: "moonpool.vllm.connector", PD_NAME: "moonpool.vllm.pd.connector"}


def register() -> None:
    """Register the connectors with vLLM's factory. vLLM may call this several times a process."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    # A second registration of the same name is an error in the factory.
    for name, module in _MODULES.items():
        if name not in KVConnectorFactory._registry:  # noqa: SLF001
            KVConnectorFactory.register_connector(name, module, name)
