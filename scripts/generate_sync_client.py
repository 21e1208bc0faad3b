"""Writes the blocking client, ``onelog/client/sync``, from the source of the async one.

``python -m scripts.generate_sync_client`` writes the files; a test compares them with what it would
write. Every public method has the same arguments, types and text; what differs is that it runs its
coroutine in the loop's thread and waits. Nothing is implemented twice.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = ROOT / "onelog" / "client"
TARGET = HERE / "sync"
MODULES = (
    "admin", "client", "group", "kv", "leases", "log", "queue", "stream", "tail", "timeseries",
    "transactions", "watch", "worker",
)  # fmt: skip
# Streams whose items are large and must not be read ahead. What the server pushes to ``consume`` is
# leased anyway, up to the credit.
ONE_BY_ONE = frozenset(("frames", "snapshot"))


def generate() -> dict[str, str]:
    """Return the text of each file, formatted."""
    trees = {name: ast.parse((HERE / f"{name}.py").read_text()) for name in MODULES}
    homes = {
        node.name: name
        for name, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.startswith("Async")
    }
    texts = {f"{name}.py": _format(_module(name, trees[name], homes)) for name in MODULES}
    texts["__init__.py"] = (
        '"""The blocking client, written by ``scripts.generate_sync_client``; see there."""\n'
    )
    return texts


def _format(text: str) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        text = subprocess.run(
            [ruff, *command, "--stdin-filename", TARGET / "x.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


def _module(name: str, tree: ast.Module, homes: dict[str, str]) -> str:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in homes]
    body = "\n\n".join(_class(node, homes) for node in classes)
    names = set(re.findall(r"\b[A-Za-z_]\w*", _extract_code(body)))
    lines = [
        f'"""``onelog/client/{name}.py`` for programs without an event loop.\n\n'
        'Written by ``python -m scripts.generate_sync_client``: change it there.\n"""\n',
        *_imports(name, tree, names, homes),
    ]
    return "\n".join(lines) + "\n\n" + body


def _extract_code(body: str) -> str:
    """Return a class body without its strings, so that only names of code are left."""
    return re.sub(r'"""(?:.|\n)*?"""', "", body)


def _imports(name: str, tree: ast.Module, names: set[str], homes: dict[str, str]) -> list[str]:
    bases = sorted({"Facade", "PagesFacade", "unwrap"} & names)
    found = [f"from onelog.client.blocking import {', '.join(bases)}"]
    if name == "client":
        found.append("from onelog.client.blocking import LoopThread")
        found.append("from onelog.client.client import AsyncClient")
    if "Items" in names:
        found.append("from onelog.client.blocking import Items")
    if "Any" in names:
        found.append("from typing import Any")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                used = alias.asname or alias.name
                if used in names and not used.startswith("Async") and used != "Any":
                    found.append(f"from {node.module} import {alias.name} as {used}")
        elif isinstance(node, ast.ClassDef) and node.name not in homes and node.name in names:
            found.append(f"from onelog.client.{name} import {node.name}")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            aliases = {each.id for each in targets if isinstance(each, ast.Name)}
            found += [f"from onelog.client.{name} import {each}" for each in aliases & names]
    for core, home in homes.items():
        if core.removeprefix("Async") in names and home != name:
            found.append(f"from onelog.client.sync.{home} import {core.removeprefix('Async')}")
    return [re.sub(r" import (\w+) as \1$", r" import \1", line) for line in found]


def _class(node: ast.ClassDef, homes: dict[str, str]) -> str:
    name = node.name.removeprefix("Async")
    lines = [f"class {name}({_base(node)}):", _doc(node, 4)]
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            lines += _method(each, name, homes)
    return "\n".join(lines) + "\n"


def _base(node: ast.ClassDef) -> str:
    bases = [ast.unparse(each) for each in node.bases]
    return next((f"PagesFacade{each[5:]}" for each in bases if each.startswith("Pages[")), "Facade")


def _method(
    node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, homes: dict[str, str]
) -> list[str]:
    match node.name:
        case "__init__":
            return _client_init(node) if owner == "Client" else []
        case "__aiter__":
            return ["    def __iter__(self) -> Self:", "        return self", ""]
        case "__anext__":
            returned = _sync(ast.unparse(node.returns)) if node.returns else "object"
            return [
                f"    def __next__(self) -> {returned}:",
                f"        found: {returned} = self._take_next()",
                "        return found",
                "",
            ]
        case "__aenter__":
            return [
                "    def __enter__(self) -> Self:",
                "        self._thread.run(self._core.__aenter__())",
                "        return self",
                "",
            ]
        case "__aexit__":
            closing = (
                "self.close()"
                if owner == "Client"
                else ("self._thread.run(self._core.__aexit__(*error))")
            )
            return ["    def __exit__(self, *error: object) -> None:", f"        {closing}", ""]
    if node.name.startswith("_") or _is(node, "classmethod"):
        return []
    return _public(node, owner, homes)


def _public(
    node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, homes: dict[str, str]
) -> list[str]:
    assert node.returns is not None, node.name
    core_type = ast.unparse(node.returns).strip("'\"")
    returned = _sync(core_type)
    is_iterator = isinstance(node, ast.AsyncFunctionDef) and core_type.startswith("AsyncIterator")
    if is_iterator:
        returned = returned.replace("Iterator", "Items", 1)
    lines = ["    @property"] if _is(node, "property") else []
    # A class of the core may be defined below its user; so may a name in quotes.
    shown = f'"{returned}"' if core_type in homes else returned
    lines.append(f"    def {node.name}({_sync(ast.unparse(node.args))}) -> {shown}:")
    lines.append(_doc(node, 8))
    call = f"self._core.{node.name}"
    if not _is(node, "property"):
        call += f"({_passed(node.args)})"
    if is_iterator:
        ahead = ", 1" if node.name in ONE_BY_ONE else ""
        return [*lines, f"        return self._thread.iterate({call}{ahead})", ""]
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"self._thread.run({call})"
    if owner == "Client" and node.name == "close":
        return [
            *lines,
            "        if self._thread.is_closed:",
            "            return",
            "        try:",
            f"            {call}",
            "        finally:",
            "            self._thread.close()",
            "",
        ]
    if core_type == "Self":
        lines += [f"        found: Self = self._same({call})", "        return found"]
    elif core_type in homes:
        lines.append(f"        return {returned}({call}, self._thread)")
    elif core_type == "None":
        lines.append(f"        {call}")
    else:
        lines += [f"        found: {returned} = {call}", "        return found"]
    return [*lines, ""]


def _client_init(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [
        f"    def __init__({ast.unparse(node.args)}) -> None:",
        _doc(node, 8),
        f"        super().__init__(AsyncClient({_passed(node.args)}), LoopThread())",
        "        self._core._connection.thread = self._thread",
        "",
    ]


def _passed(arguments: ast.arguments) -> str:
    """Return the arguments of a method as it passes them on."""
    parts = [_unwrapped(each) for each in arguments.args[1:]]
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    parts += [f"{each.arg}={_unwrapped(each)}" for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        parts.append(f"**{arguments.kwarg.arg}")
    return ", ".join(parts)


def _unwrapped(argument: ast.arg) -> str:
    annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
    return f"unwrap({argument.arg})" if re.search(r"\bAsync[A-Z]", annotation) else argument.arg


def _sync(text: str) -> str:
    return re.sub(r"\bAsync(?=[A-Z])", "", text).replace("'", '"')


def _is(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == decorator for each in node.decorator_list)


def _doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: int) -> str:
    text = ast.get_docstring(node) or ""
    space = " " * indent
    lines = [f"{space}{line}".rstrip() for line in text.splitlines()]
    closing = f"\n{space}" if len(lines) > 1 else ""
    return (
        f'{space}"""'
        + "\n".join(lines).lstrip()
        + f'{closing}"""'
        + ("\n" if isinstance(node, ast.ClassDef) else "")
    )


def main() -> None:
    """Write the files."""
    TARGET.mkdir(exist_ok=True)
    for name, text in generate().items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
