"""``onelog completion``: scripts with which shells complete commands and flags.

Such a script runs ``onelog`` with VARIABLE set, and typer answers instead of the command. Typer
supports this with two flags of its own; only this module knows how to do it without them.
"""

from enum import StrEnum
from typing import Annotated

import typer

VARIABLE = "_ONELOG_COMPLETE"  # set by the scripts when they ask

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def get_ready() -> None:
    """Register the shells with typer, in a process that a completion script started."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


class Shell(StrEnum):
    """Shells that are supported."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print a script that completes commands and flags in your shell.

    \b
    Examples:
      eval "$(onelog completion bash)"
      onelog completion zsh > _onelog
      onelog completion fish > onelog.fish

    To make it permanent: for bash put the eval line into ~/.bashrc, for zsh the file into a
    directory of $fpath, for fish the file into ~/.config/fish/completions.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name="onelog", complete_var=VARIABLE, shell=shell))
