"""Every function, method, class and constant of the product is reached by the product itself.

Code that only tests call costs its readers as much as code that works for somebody, and documents
begin to speak of it as if it worked. Benchmarks and scripts are no callers either.

The walk begins at the entry points: the commands, the RPCs of the protos, the library that
``onelog`` and ``onelog.spark`` export, and what runs when modules are imported. Names of modules
are resolved through imports. Methods are matched by name alone: one is reached when its class is,
and when some reached code has an attribute of this name. So the test misses a dead method that has
the name of a live one, and what it reports is dead.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import LINKED

ROOT = Path(__file__).parent.parent
CLIENT = "onelog.client."
SYNC = "onelog.client.sync."
TYPE_NAME = re.compile(r"\w+(\.\w+)*(\[[^.]*\])?( \| \w+)*")

# Methods that libraries call; the walk cannot see it.
FRAMEWORKS = {
    "asyncio.Protocol": ("connection_made", "data_received", "eof_received", "pause_writing"),
    "coroutines": ("throw",),
    "click": (
        "collect_usage_pieces", "format_commands", "format_epilog", "format_options",
        "resolve_command",
    ),
    "grpc.reflection": ("server_reflection_info",),
    "ipython": ("_repr_html_",),
    "ssl.SSLContext": ("wrap_bio",),
    "pysyncobj": (
        "_SyncObj__applyLogEntries", "_SyncObj__connectedToAnyone", "_SyncObj__getEntries",
        "_SyncObj__onBecomeLeader",
        "_SyncObj__sendAppendEntries", "_SyncObj__sendNextNodeIdx", "_destroy",
        "deleteEntriesFrom", "deleteEntriesTo", "destroy", "getRaftCommitIndex",
        "getVotedForNodeId", "onOneSecondTimer", "setCurrentTerm", "setRaftCommitIndex",
        "tryGetReady",
    ),
    "pyspark": (
        "addInPlace", "getDefaultReadLimit", "initialOffset", "latestOffset",
        "prepareForTriggerAvailableNow", "reportLatestOffset", "streamReader", "streamWriter",
        "writer", "zero",
    ),
    "uvicorn": ("on_header", "on_headers_complete", "on_response_complete"),
}  # fmt: skip

# Structures check and measure themselves for the tests, which compare them with models.
SELF_CHECKS = ("check", "memory")

# What waits for its caller, and what it is for. Remove a name when it is called, or deleted.
LATER = {
    "onelog.node.replica.spill:LmdbSpill": "values on disk that do not fit into memory",
    "onelog.node.replica.spill:LmdbSpill.pending_bytes": "what a memory budget has to count",
    "onelog.projections.router:ProjectionRouter.evict": "keeps a shard within a memory budget",
    "onelog.ual.segments.sealing:compact_segment": "drops dead payloads of old segments",
}


@dataclass(frozen=True)
class Attribute:
    """Some attribute of this name, of an object that is not known."""

    name: str


@dataclass(frozen=True)
class Global:
    """A name of a module."""

    module: str
    name: str


@dataclass
class Definition:
    """A function, class, method or constant, and what its code names."""

    place: Global
    path: Path
    line: int
    owner: Global | None = None
    returns: ast.expr | None = None
    uses: set[Attribute | Global] = field(default_factory=set)

    @property
    def method(self) -> str | None:
        return self.place.name.rpartition(".")[2] if self.owner else None


@dataclass
class Module:
    """A parsed file: what it imports under which name, and what it runs when it is imported."""

    name: str
    path: Path
    tree: ast.Module
    imports: dict[str, set[str]] = field(default_factory=dict)
    uses: set[Attribute | Global] = field(default_factory=set)


class Program:
    """The definitions of a set of files, and which of them are reached."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.modules: dict[str, Module] = {}
        self.definitions: dict[Global, Definition] = {}
        for name, path in files.items():
            module = Module(name, path, ast.parse(path.read_text()))
            self.modules[name] = module
            read_imports(module)
        for module in self.modules.values():
            self._define(module)

    def _define(self, module: Module) -> None:
        for statement in top_level(module.tree.body):
            names = defined_names(statement)
            if not names:
                module.uses |= self._uses(module, statement)
                continue
            for name in names:
                place = Global(module.name, name)
                made = Definition(place, module.path, statement.lineno)
                # A function may be defined twice: for two platforms, or as an overload.
                made = self.definitions.setdefault(place, made)
                if isinstance(statement, ast.ClassDef):
                    self._define_class(module, statement, made)
                else:
                    made.uses |= self._uses(module, statement)
                if is_registered(statement) or name.startswith("__"):
                    module.uses.add(place)

    def _define_class(self, module: Module, node: ast.ClassDef, made: Definition) -> None:
        for outer in (*node.bases, *node.keywords, *node.decorator_list):
            made.uses |= self._uses(module, outer)
        for statement in node.body:
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                made.uses |= self._uses(module, statement)
                # A body may name its methods: ``__call__ = apply``.
                made.uses |= {Attribute(each) for each in names_in(statement)}
            elif statement.name.startswith("__") and statement.name.endswith("__"):
                made.uses |= self._uses(module, statement)
            else:
                place = Global(module.name, f"{made.place.name}.{statement.name}")
                new = Definition(place, module.path, statement.lineno, made.place)
                new.returns = statement.returns
                self.definitions.setdefault(place, new).uses |= self._uses(module, statement)

    def _uses(self, module: Module, node: ast.AST) -> set[Attribute | Global]:
        found: set[Attribute | Global] = set()
        for each in walk_quoted(node):
            if isinstance(each, ast.Name):
                found |= self._named(module, each.id)
            elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
                found.add(Attribute(each.attr))
                inside = dotted(each.value)
                targets = module.imports.get(inside, {inside}) if inside else set()
                found |= {Global(one, each.attr) for one in targets if one in self.modules}
            elif isinstance(each, ast.MatchClass):
                found |= {Attribute(name) for name in each.kwd_attrs}
            elif isinstance(each, ast.Call):
                found |= {Attribute(name) for name in looked_up(each)}
        return found

    def _named(self, module: Module, name: str) -> set[Global]:
        targets = module.imports.get(name)
        if targets is None:
            return {Global(module.name, name)}
        parts = (each.rpartition(".") for each in targets)
        return {Global(home, last) for home, _, last in parts}

    def resolve(self, place: Global) -> set[Global]:
        """Return where a name is defined that a module may have from another."""
        module = self.modules.get(place.module)
        if place in self.definitions or module is None or place.name not in module.imports:
            return {place}
        # A package imports its own modules: ``from onelog import errors``.
        others = self._named(module, place.name) - {place}
        return {found for each in others for found in self.resolve(each)}

    def reach(self, roots: set[Attribute | Global]) -> set[Global]:
        """Return the definitions that these roots reach."""
        reached: set[Global] = set()
        attributes: set[str] = set()
        todo = list(roots)
        waiting: dict[str, list[Definition]] = {}
        methods: dict[Global, list[Definition]] = {}
        for each in self.definitions.values():
            if each.owner:
                methods.setdefault(each.owner, []).append(each)

        def arrive(made: Definition) -> None:
            if made.place in reached:
                return
            reached.add(made.place)
            todo.extend(made.uses)
            for method in methods.get(made.place, ()):
                if method.method in attributes:
                    arrive(method)
                else:
                    waiting.setdefault(str(method.method), []).append(method)

        while todo:
            use = todo.pop()
            if isinstance(use, Attribute):
                attributes.add(use.name)
                for method in waiting.pop(use.name, ()):
                    arrive(method)
            else:
                for place in self.resolve(use):
                    if place in self.definitions:
                        arrive(self.definitions[place])
        return reached

    def public_methods(self, classes: set[Global]) -> set[Global]:
        """Return public methods of classes that users hold, and of those that these hand out."""
        found: set[Global] = set()
        seen: set[Global] = set()
        todo = [place for each in classes for place in self.resolve(each)]
        while todo:
            place = todo.pop()
            if place in seen or place not in self.definitions:
                continue
            seen.add(place)
            for each in self.definitions.values():
                if each.owner == place and not str(each.method).startswith("_"):
                    found.add(each.place)
                    todo += [
                        one
                        for use in self._annotations(each)
                        for one in self.resolve(use)
                        if one.module.startswith(CLIENT)
                    ]
        return found

    def _annotations(self, method: Definition) -> set[Global]:
        if method.returns is None:
            return set()
        uses = self._uses(self.modules[method.place.module], method.returns)
        return {use for use in uses if isinstance(use, Global)}


def read_imports(module: Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                target = f"{node.module}.{each.name}"
                module.imports.setdefault(each.asname or each.name, set()).add(target)
        elif isinstance(node, ast.Import):
            for each in node.names:
                module.imports.setdefault(each.asname or each.name, set()).add(each.name)


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those under ``if`` and ``try``."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield ast.Expr(statement.test)
            yield from top_level(statement.body + statement.orelse)
        elif isinstance(statement, ast.Try):
            handled = [each for handler in statement.handlers for each in handler.body]
            yield from top_level(statement.body + handled + statement.orelse + statement.finalbody)
        else:
            yield statement


def defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return []
    found = [node for each in targets for node in ast.walk(each)]
    names = [node.id for node in found if isinstance(node, ast.Name)]
    # ``table[key] = f`` changes what is there; it runs on import.
    plain = all(isinstance(node, ast.Name | ast.Tuple | ast.Store) for node in found)
    return names if plain else []


def is_registered(statement: ast.stmt) -> bool:
    """Tell whether a decorator makes this a command."""
    decorators = getattr(statement, "decorator_list", [])
    return any(re.search(r"\b(command|callback)\(", ast.unparse(each)) for each in decorators)


def walk_quoted(node: ast.AST) -> Iterator[ast.AST]:
    """Walk, also through annotations in quotes."""
    for each in ast.walk(node):
        yield each
        for part in (getattr(each, "annotation", None), getattr(each, "returns", None)):
            for inner in ast.walk(part) if isinstance(part, ast.AST) else ():
                text = inner.value if isinstance(inner, ast.Constant) else None
                # A help text in Annotated is no type.
                if isinstance(text, str) and TYPE_NAME.fullmatch(text):
                    yield from ast.walk(ast.parse(text, mode="eval"))


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inside = dotted(node.value)
        return f"{inside}.{node.attr}" if inside else ""
    return ""


def looked_up(call: ast.Call) -> set[str]:
    """Return the names that a call looks up by a string."""
    if dotted(call.func).rpartition(".")[2] not in ("getattr", "attrgetter", "methodcaller"):
        return set()
    values = [each.value for each in call.args if isinstance(each, ast.Constant)]
    return {value for value in values if isinstance(value, str)}


def product_files() -> dict[str, Path]:
    files: dict[str, Path] = {}
    for package in ("onelog", *sorted(LINKED)):
        # An unpacked source distribution has the folders inside of onelog.
        folder = ROOT / package if (ROOT / package).exists() else ROOT / "onelog" / package
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if package == "onelog" and (parts[0] == "v1" or parts[0] in LINKED):
                continue
            names = (package, *parts) if package == "onelog" else ("onelog", package, *parts)
            files[".".join(names).removesuffix(".__init__")] = path
    return files


def rpc_handlers() -> set[str]:
    """Return the names of methods that calls are handed to."""
    protos = "\n".join(path.read_text() for path in (ROOT / "proto").rglob("*.proto"))
    names = re.findall(r"^\s*rpc (\w+)", protos, flags=re.MULTILINE)
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}


def exported(program: Program, module: str) -> set[Global]:
    """Return what a module lists in ``__all__``, where it is defined."""
    listed = next(
        ast.literal_eval(each.value)
        for each in program.modules[module].tree.body
        if isinstance(each, ast.Assign) and dotted(each.targets[0]) == "__all__"
    )
    return {place for name in listed for place in program.resolve(Global(module, name))}


def entry_points(program: Program) -> set[Attribute | Global]:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    roots: set[Attribute | Global] = {Global(*each.split(":")) for each in scripts.values()}
    roots |= {use for module in program.modules.values() for use in module.uses}
    called = {name for names in FRAMEWORKS.values() for name in names}
    roots |= {Attribute(name) for name in called | rpc_handlers()}
    users = exported(program, "onelog") | exported(program, "onelog.spark")
    errors = {place for place in program.definitions if place.module == "onelog.errors"}
    # The blocking client is generated from the other one, method by method.
    sync = {place for place in program.definitions if place.module.startswith(SYNC)}
    return roots | users | errors | sync | program.public_methods(users)


def place_of(name: str) -> Global:
    return Global(*name.split(":"))


def unreached(program: Program) -> list[Definition]:
    """Return the code that nothing reaches, but for what is exempt and what that needs."""
    checks = {each.place for each in program.definitions.values() if each.method in SELF_CHECKS}
    exempt = {place_of(name) for name in LATER}
    reached = program.reach(entry_points(program) | checks | exempt)
    return [
        each
        for each in program.definitions.values()
        if each.place not in reached and each.owner in reached | {None}
    ]


PROGRAM = Program(product_files())


def test_all_code_of_the_product_is_reached() -> None:
    """Delete what this lists, or move it to the tests or benchmarks that use it."""
    found = unreached(PROGRAM)
    assert [f"{each.path.relative_to(ROOT)}:{each.line} {each.place.name}" for each in found] == []


def test_what_is_exempt_is_there_and_waits_for_its_caller() -> None:
    """A name that stays in the list would hide the next one that is dead."""
    exempt = {place_of(name) for name in LATER}
    assert exempt - set(PROGRAM.definitions) == set()
    assert exempt & PROGRAM.reach(entry_points(PROGRAM)) == set()


def test_what_libraries_call_is_there() -> None:
    methods = {each.method for each in PROGRAM.definitions.values()}
    assert {name for names in FRAMEWORKS.values() for name in names} - methods == set()


def test_dead_code_is_found(tmp_path: Path) -> None:
    """Calls among dead functions, and of a function by itself, are no callers."""
    source = tmp_path / "m.py"
    source.write_text(
        "def live(): return Kind().used(), HERE\n"
        "HERE = 1\n"
        "GONE = 3\n"
        "def dead(): return dead() + lost()\n"
        "def lost(): return Kind().gone()\n"
        "class Kind:\n"
        "    def used(self): ...\n"
        "    def gone(self): ...\n"
    )
    program = Program({"m": source})
    reached = program.reach({Global("m", "live")})
    dead = {each.name for each in set(program.definitions) - reached}
    assert dead == {"dead", "lost", "Kind.gone", "GONE"}
