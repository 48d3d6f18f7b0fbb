"""The vLLM connector: engines keep their KV blocks in the pool and load each other's."""
