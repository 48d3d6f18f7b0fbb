"""An authority and certificates of it, made by openssl for a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="no openssl on this machine")


class Authority:
    """Signs certificates for 127.0.0.1; all files are in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._key = folder / "ca.key"
        self._run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=moonpool test", "-keyout", self._key, "-out", self.ca),
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return a new certificate, and its key. It names nobody: where etcd wants passwords, its
        gateway refuses certificates with a common name."""
        key, asked, cert = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        more = self.folder / f"{name}.ext"
        more.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/", "-keyout", key, "-out", asked),
        )
        self._run(
            *("x509", "-req", "-in", asked, "-CA", self.ca, "-CAkey", self._key, "-days", "2"),
            *("-CAcreateserial", "-extfile", more, "-out", cert),
        )
        return cert, key

    def _run(self, *words: object) -> None:
        assert OPENSSL is not None
        command = [OPENSSL, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
