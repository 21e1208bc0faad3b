"""Authorities and certificates as an operator makes them: by openssl, signed, for ``localhost``."""

import ssl
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


def signed(
    directory: Path,
    name: str,
    by: Certificate,
    *,
    names: tuple[str, ...] = (),
    uses: str = "",
) -> Certificate:
    """Make a certificate for ``localhost`` and other names that an authority has signed.

    ``uses``: what its extended key usage allows; empty: there is none.
    """
    made = Certificate(directory / f"{name}.key", directory / f"{name}.crt")
    request, extensions = directory / f"{name}.csr", directory / f"{name}.names"
    lines = [f"subjectAltName={','.join(('DNS:localhost', *names))}"]
    lines += [f"extendedKeyUsage={uses}"] if uses else []
    extensions.write_text("\n".join(lines))
    _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
    issuer = ("-CA", by.chain, "-CAkey", by.key, "-CAcreateserial")
    _openssl(
        *("x509", "-req", "-in", request, "-days", "1"),
        *(*issuer, "-extfile", extensions, "-out", made.chain),
    )
    return made


def client_context(directory: Path, ca: str, own: str | None) -> ssl.SSLContext:
    """Return what trusts an authority and shows a certificate, whatever that is for."""
    context = ssl.create_default_context(cafile=str(directory / f"{ca}.crt"))
    if own is not None:
        context.load_cert_chain(directory / f"{own}.crt", directory / f"{own}.key")
    return context
