"""The wire: framing, versions and the codec of the messages in ``moonpool.core.messages``."""
