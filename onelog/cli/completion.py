"""``onelog completion``: scripts with which shells complete commands and flags.

Such a script runs ``onelog`` with VARIABLE set, and typer answers instead of the command. Typer has
that for programs with its own two flags; this is the one place that knows how to do without them.
"""

from enum import StrEnum
from typing import Annotated

import typer

VARIABLE = "_ONELOG_COMPLETE"  # set by the scripts when they ask

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def get_ready() -> None:
    """Let typer know the shells, in a process that one of the scripts has started."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


class Shell(StrEnum):
    """Shells that can be taught."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print a script that lets your shell complete commands and flags.

    \b
    Examples:
      eval "$(onelog completion bash)"
      onelog completion zsh > _onelog
      onelog completion fish > onelog.fish

    For good: bash, the eval line in ~/.bashrc; zsh, the file in a directory of $fpath; fish, the
    file in ~/.config/fish/completions.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name="onelog", complete_var=VARIABLE, shell=shell))
