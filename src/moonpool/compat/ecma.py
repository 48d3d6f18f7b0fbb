"""Regular expressions of ECMAScript, in which the Mooncake API's are, as Python's."""

from __future__ import annotations

import re

_CLASSES = {"[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:alnum:]": "a-zA-Z0-9"}
_CLASSES |= {"[:space:]": r"\s", "[:upper:]": "A-Z", "[:lower:]": "a-z", "[:xdigit:]": "0-9a-fA-F"}
_PYTHON_ONLY = re.compile(r"\(\?(?![:=!])|\\[AZzG]|(?<!\\)[*+?}]\+")


def pattern_of(text: str) -> re.Pattern[str]:
    """Return the compiled expression. Raises re.error for what ECMAScript refuses too."""
    if _PYTHON_ONLY.search(text):
        raise re.error("no expression of ECMAScript")
    for name, members in _CLASSES.items():
        text = text.replace(name, members)
    return re.compile(text.replace("\\/", "/"), re.ASCII)
