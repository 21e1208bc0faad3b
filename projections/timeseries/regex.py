"""Regular expressions for matchers, without backtracking.

A pattern decides which series an entry deletes, so it must mean the same on every replica and
cost the same for every text: a library whose meaning changes between releases, or which takes
exponential time, is not usable. A pattern is compiled to a small program (Thompson, 1968) that is
run with all its positions at once; known transitions come from a table. Matching n
characters takes at most n times the size of the program.

A pattern matches the whole text. It knows ``. | * + ? {m} {m,} {m,n} ( ) (?: ) [a-z] [^a-z]``, the
classes ``\\d \\w \\s \\D \\W \\S`` (ASCII), and ``\\`` before any other character that is no letter
or digit; ``^`` at the start and ``$`` at the end are allowed and redundant. Nothing else: no
backreferences, no lookaround, no flags.
"""

from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.timeseries.limits import (
    PATTERN_CACHE_MAX,
    PATTERN_DEPTH_MAX,
    PATTERN_REPEAT_MAX,
    PATTERN_SIZE_MAX,
    PATTERN_STEPS_MAX,
)

Ranges = tuple[tuple[str, str], ...]
_DIGITS: Ranges = (("0", "9"),)
_WORD: Ranges = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Ranges = (("\t", "\r"), (" ", " "))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}

_CHARACTER, _SPLIT, _JUMP, _MATCH = range(4)
_Step = tuple[int, int, int, Ranges, bool]  # kind, target, other target, ranges, negated
_ANY: Ranges = ()


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_moves", "_names", "_program", "_start", "_states", "effort")

    def __init__(self, text: str) -> None:
        # Positions visited so far. A step from the table counts like a computed one: the effort
        # bounds a delete, and all replicas must stop at the same series.
        self.effort = 0
        self._program = _Compiler(text).compile()
        self._moves: dict[tuple[int, str], int] = {}
        self._names: dict[tuple[int, ...], int] = {}
        self._states: list[tuple[int, ...]] = []
        self._start = self._name(self._closure([0]))

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches all of ``text``."""
        moves = self._moves
        states = self._states
        state = self._start
        effort = 0
        for character in text:
            following = moves.get((state, character))
            if following is None:
                following = self._move(state, character)
            effort += len(states[state]) + len(states[following])
            state = following
        self.effort += effort
        at_end = states[state]
        matched = bool(at_end) and self._program[at_end[-1]][0] == _MATCH
        if len(moves) > PATTERN_CACHE_MAX:
            moves.clear()
            start = self._states[self._start]
            self._names, self._states = {start: 0}, [start]
            self._start = 0
        return matched

    def _move(self, state: int, character: str) -> int:
        targets = []
        for position in self._states[state]:
            kind, target, _, ranges, negated = self._program[position]
            if kind == _CHARACTER:
                inside = ranges == _ANY or any(low <= character <= high for low, high in ranges)
                if inside != negated:
                    targets.append(target)
        following = self._name(self._closure(targets))
        self._moves[state, character] = following
        return following

    def _name(self, positions: tuple[int, ...]) -> int:
        name = self._names.setdefault(positions, len(self._states))
        if name == len(self._states):
            self._states.append(positions)
        return name

    def _closure(self, positions: list[int]) -> tuple[int, ...]:
        """Return all positions reachable without reading a character; the end is the last."""
        seen: set[int] = set()
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if position in seen:
                continue
            seen.add(position)
            kind, target, other, _, _ = self._program[position]
            if kind in (_SPLIT, _JUMP):
                waiting.append(target)
            if kind == _SPLIT:
                waiting.append(other)
        kinds = (_CHARACTER, _MATCH)
        return tuple(at for at in sorted(seen) if self._program[at][0] in kinds)


_TOO_LONG = f"takes more than {PATTERN_STEPS_MAX} steps, repetitions written out,"


class _Compiler:
    """Turns the text of a pattern into a program; raises ``BadPayload`` with the position."""

    def __init__(self, text: str) -> None:
        if len(text.encode()) > PATTERN_SIZE_MAX:
            words = f"a pattern of {len(text.encode())} bytes, limit {PATTERN_SIZE_MAX}"
            raise BadPayload(Reason.MATCHER_INVALID, PATTERN_SIZE_MAX, words)
        self._text = text
        self._at = 0
        self._depth = 0

    def compile(self) -> list[_Step]:
        if self._peek() == "^":
            self._at += 1
        program = self._alternatives()
        if self._peek() == "$" and self._at == len(self._text) - 1:
            self._at += 1
        if self._at != len(self._text):
            raise self._invalid()
        program.append((_MATCH, 0, 0, _ANY, False))
        return program

    def _invalid(self, words: str = "is not understood") -> BadPayload:
        message = f"the pattern {self._text!r} {words} at character {self._at}"
        return BadPayload(Reason.MATCHER_INVALID, self._at, message)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise self._invalid()
        self._at += 1
        return character

    def _alternatives(self) -> list[_Step]:
        self._depth += 1
        if self._depth > PATTERN_DEPTH_MAX:
            raise self._invalid(f"nests more than {PATTERN_DEPTH_MAX} groups")
        program = self._sequence()
        while self._peek() == "|":
            self._at += 1
            other = self._sequence()
            size = len(program)
            head: _Step = (_SPLIT, 1, size + 2, _ANY, False)
            jump: _Step = (_JUMP, size + 2 + len(other), 0, _ANY, False)
            program = [head, *_moved(program, 1), jump, *_moved(other, size + 2)]
            self._bound(program)
        self._depth -= 1
        return program

    def _sequence(self) -> list[_Step]:
        program: list[_Step] = []
        while True:
            character = self._peek()
            last = character == "$" and self._at == len(self._text) - 1 and self._depth == 1
            if character in ("", "|", ")") or last:
                return program
            program += _moved(self._repeated(self._atom()), len(program))
            self._bound(program)

    def _bound(self, program: list[_Step]) -> None:
        if len(program) > PATTERN_STEPS_MAX:
            raise self._invalid(_TOO_LONG)

    def _repeated(self, atom: list[_Step]) -> list[_Step]:
        character = self._peek()
        if character not in ("*", "+", "?", "{"):
            return atom
        self._at += 1
        if character == "{":
            least, most = self._counts()
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        if self._peek() in ("*", "+", "{"):
            raise self._invalid()
        if self._peek() == "?":  # non-greedy: no difference when the whole text must match
            self._at += 1
        size = len(atom)
        optional = size + 2 if most is None else (most - least) * (size + 1)
        if least * size + optional > PATTERN_STEPS_MAX:
            raise self._invalid(_TOO_LONG)
        program: list[_Step] = []
        for _ in range(least):
            program += _moved(atom, len(program))
        if most is None:
            at = len(program)
            loop: _Step = (_SPLIT, at + 1, at + size + 2, _ANY, False)
            program += [loop, *_moved(atom, at + 1), (_JUMP, at, 0, _ANY, False)]
            return program
        end = len(program) + (most - least) * (size + 1)
        for _ in range(most - least):
            at = len(program)
            program += [(_SPLIT, at + 1, end, _ANY, False), *_moved(atom, at + 1)]
        return program

    def _counts(self) -> tuple[int, int | None]:
        least = self._number()
        most: int | None = least
        if self._peek() == ",":
            self._at += 1
            most = None if self._peek() == "}" else self._number()
        if self._take() != "}" or (most is not None and most < least):
            raise self._invalid()
        return least, most

    def _number(self) -> int:
        digits = ""
        while self._peek() and self._peek() in "0123456789" and len(digits) < 4:
            digits += self._take()
        if not digits:
            raise self._invalid()
        if int(digits) > PATTERN_REPEAT_MAX:
            raise self._invalid(f"repeats something more than {PATTERN_REPEAT_MAX} times")
        return int(digits)

    def _atom(self) -> list[_Step]:
        character = self._take()
        match character:
            case ".":
                return [(_CHARACTER, 1, 0, _ANY, False)]
            case "(":
                if self._text.startswith("?:", self._at):
                    self._at += 2
                program = self._alternatives()
                if self._take() != ")":
                    raise self._invalid()
                return program
            case "[":
                return [self._set()]
            case "\\":
                ranges, negated = self._escaped()
                return [(_CHARACTER, 1, 0, ranges, negated)]
            case "*" | "+" | "?" | "{" | "}" | "]" | ")" | "^" | "$":
                self._at -= 1
                raise self._invalid()
        return [(_CHARACTER, 1, 0, ((character, character),), False)]

    def _escaped(self) -> tuple[Ranges, bool]:
        character = self._take()
        if character in "dws":
            return _CLASSES[character], False
        if character in "DWS":
            return _CLASSES[character.lower()], True
        if character.isascii() and character.isalnum():
            raise self._invalid()
        return ((character, character),), False

    def _set(self) -> _Step:
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[str, str]] = []
        while not ranges or self._peek() != "]":
            low = self._take()
            if low == "\\":
                escaped, escaped_negated = self._escaped()
                if escaped_negated:
                    raise self._invalid()
                if len(escaped) > 1 or escaped == _DIGITS:
                    ranges += escaped
                    continue
                low = escaped[0][0]
            high = low
            following = self._text[self._at : self._at + 2]
            if following.startswith("-") and following not in ("-", "-]"):
                self._at += 1
                high = self._take()
                if high == "\\":
                    escaped, escaped_negated = self._escaped()
                    if escaped_negated or len(escaped) > 1 or escaped == _DIGITS:
                        raise self._invalid()
                    high = escaped[0][0]
            if high < low:
                raise self._invalid()
            ranges.append((low, high))
        self._at += 1
        return _CHARACTER, 1, 0, tuple(ranges), negated


def _moved(program: list[_Step], by: int) -> list[_Step]:
    """Return the program with its jump targets shifted by ``by``."""
    return [
        (kind, target + by, other + by, ranges, negated)
        for kind, target, other, ranges, negated in program
    ]
