"""Mooncake's commands, with its flags, as moonpool runs them."""
