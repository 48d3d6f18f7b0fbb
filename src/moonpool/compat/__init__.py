"""The Mooncake API, answered by moonpool (docs/mooncake.md)."""
