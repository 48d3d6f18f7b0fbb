"""The client library: Store, AsyncStore and what they stand on."""
