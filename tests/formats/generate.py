"""Write the golden files again: ``python -m tests.formats.generate``, from the project's root.

For a format that was changed on purpose, together with its version and docs/formats.md. Files of
the version before must stay readable: keep their golden files under other names.

A golden file that exists and cannot be reproduced byte by byte (zstd) is left as it is; remove it
to have a new one.
"""

import sys

from tests.formats.golden import golden_path, render_hex
from tests.formats.samples import SAMPLES


def generate() -> list[str]:
    """Write every golden file that is missing or differs; return their names."""
    written = []
    for sample in SAMPLES:
        path = golden_path(sample.name)
        if path.exists() and not sample.is_reproducible:
            continue
        data = sample.build()
        text = render_hex(sample.title, data, sample.marks(data))
        if not path.exists() or path.read_text("ascii") != text:
            path.write_text(text, "ascii")
            written.append(path.name)
    return written


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}\n" for name in generate()))
