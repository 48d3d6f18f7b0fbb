"""Mooncake's Python package, answered by moonpool: see ``moonpool compat env``."""
