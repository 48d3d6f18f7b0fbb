"""Prefix from the pool, the rest from a prefill instance: a pool and a peer in one connector."""
