"""Authorities and certificates as an operator makes them: by openssl, signed, for ``localhost``."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """Files of a key and of what an authority says about it."""

    key: Path
    chain: Path


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def authority(directory: Path, name: str) -> Certificate:
    """Make an authority."""
    made = Certificate(directory / f"{name}.key", directory / f"{name}.crt")
    files = ("-keyout", made.key, "-out", made.chain)
    _openssl("req", "-x509", *_KEY, "-days", "1", "-subj", f"/CN={name}", *files)
    return made


def signed(directory: Path, name: str, by: Certificate) -> Certificate:
    """Make a certificate for ``localhost`` that an authority has signed."""
    made = Certificate(directory / f"{name}.key", directory / f"{name}.crt")
    request, names = directory / f"{name}.csr", directory / f"{name}.names"
    names.write_text("subjectAltName=DNS:localhost\n")
    _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
    issuer = ("-CA", by.chain, "-CAkey", by.key, "-CAcreateserial")
    _openssl(
        *("x509", "-req", "-in", request, "-days", "1"),
        *(*issuer, "-extfile", names, "-out", made.chain),
    )
    return made
