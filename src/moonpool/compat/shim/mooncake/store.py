"""``mooncake.store``."""

from moonpool.compat import enums
from moonpool.compat.store import *  # noqa: F403

globals().update(enums.exported())
