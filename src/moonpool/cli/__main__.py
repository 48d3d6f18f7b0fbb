"""``python -m moonpool.cli``: the same as the ``moonpool`` command."""

from __future__ import annotations

from moonpool.cli import main

if __name__ == "__main__":
    main()
