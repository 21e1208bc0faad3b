"""JSON fields: what a change does to a document, byte by byte."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.projections.errors import BadDocument
from onelog.projections.kv.commands import JsonDelete, JsonSet, Put
from onelog.projections.kv.documents import Path, delete_field, get_field, set_field
from onelog.projections.kv.reads import KeyValue
from onelog.projections.limits import JSON_DEPTH_MAX, JSON_SIZE_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Refused
from tests.projections.world import NAMESPACE, SECOND, World

DOCUMENT = b'{ "a": [1, 2.50, {"b": null}], "c": "\xc3\xa9", "n": 1E400 }'

trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def compact(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ((), b'{"a":[1,2.50,{"b":null}],"c":"\xc3\xa9","n":1E400}'),
        (("a",), b'[1,2.50,{"b":null}]'),
        (("a", 1), b"2.50"),
        (("a", 2, "b"), b"null"),
        (("c",), b'"\xc3\xa9"'),
        (("n",), b"1E400"),
    ],
)
def test_a_field_is_read_with_its_number_text_untouched(path: Path, field: bytes) -> None:
    assert get_field(DOCUMENT, path) == field


@pytest.mark.parametrize(
    ("path", "field", "after"),
    [
        (("a", 0), b"9", b'{"a":[9,2.50,{"b":null}],"c":"\xc3\xa9","n":1E400}'),
        (("z",), b" true ", b'{"a":[1,2.50,{"b":null}],"c":"\xc3\xa9","n":1E400,"z":true}'),
        (("a", None), b"[]", b'{"a":[1,2.50,{"b":null},[]],"c":"\xc3\xa9","n":1E400}'),
        ((), b"[ 1 ]", b"[1]"),
    ],
)
def test_a_field_is_set_in_place_or_at_the_end(path: Path, field: bytes, after: bytes) -> None:
    assert set_field(DOCUMENT, path, field, create_parents=False) == after


def test_missing_parents_are_made_when_asked_for() -> None:
    assert set_field(None, ("a", "b"), b"1", create_parents=True) == b'{"a":{"b":1}}'
    assert set_field(None, (None, "b"), b"1", create_parents=True) == b'[{"b":1}]'
    assert set_field(b'{"a":[]}', ("a", None, "x"), b"1", create_parents=True) == b'{"a":[{"x":1}]}'


@pytest.mark.parametrize(
    ("text", "path", "reason", "step"),
    [
        (None, ("a",), Reason.KEY_NOT_FOUND, 0),
        (b"{}", ("a", "b"), Reason.JSON_PATH_NOT_FOUND, 0),
        (b'{"a":1}', ("a", "b"), Reason.JSON_PATH_INVALID, 1),
        (b"[]", (0,), Reason.JSON_PATH_NOT_FOUND, 0),
        (b"[]", ("x",), Reason.JSON_PATH_INVALID, 0),
        (b"{}", (None,), Reason.JSON_PATH_INVALID, 0),
        (b"{", ("a",), Reason.JSON_INVALID, 0),
        (b"\xff", ("a",), Reason.JSON_INVALID, 0),
    ],
)
def test_a_path_that_does_not_fit_is_refused_with_its_step(
    text: bytes | None, path: Path, reason: Reason, step: int
) -> None:
    with pytest.raises(BadDocument) as caught:
        set_field(text, path, b"1", create_parents=False)
    assert (caught.value.reason, caught.value.detail) == (reason, step)


def test_a_position_cannot_be_made_out_of_nothing() -> None:
    with pytest.raises(BadDocument) as caught:
        set_field(b"{}", ("a", 0), b"1", create_parents=True)
    assert (caught.value.reason, caught.value.detail) == (Reason.JSON_PATH_NOT_FOUND, 1)


def test_a_deleted_element_closes_its_gap() -> None:
    assert delete_field(b"[1, 2, 3]", (1,)) == b"[1,3]"
    assert delete_field(b'{"a":{"b":1},"c":2}', ("a", "b")) == b'{"a":{},"c":2}'
    with pytest.raises(BadDocument):
        delete_field(b"[]", ())
    with pytest.raises(BadDocument):
        delete_field(b"[]", (None,))


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"-Infinity", b"01", b"'a'", b"", b"1 2"])
def test_what_other_parsers_let_pass_is_not_json(text: bytes) -> None:
    with pytest.raises(BadDocument) as caught:
        get_field(text, ())
    assert caught.value.reason is Reason.JSON_INVALID


def test_half_of_a_surrogate_pair_is_not_text() -> None:
    with pytest.raises(BadDocument):
        set_field(b"{}", ("a",), b'"\\ud800"', create_parents=False)


def test_of_a_repeated_member_the_last_one_counts() -> None:
    assert get_field(b'{"a":1,"b":2,"a":3}', ()) == b'{"a":3,"b":2}'


def test_depth_is_refused_before_it_can_reach_a_stack() -> None:
    deep = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    assert get_field(deep, ()) == deep
    for text in (b"[" + deep + b"]", b"[" * 200_000, b'{"a":' * 50_000):
        with pytest.raises(BadDocument) as caught:
            get_field(text, ())
        assert caught.value.reason is Reason.JSON_TOO_DEEP
    with pytest.raises(BadDocument) as caught:
        set_field(deep, (0,) * (JSON_DEPTH_MAX - 1), b"[[]]", create_parents=False)
    assert caught.value.reason is Reason.JSON_TOO_DEEP


def test_brackets_inside_of_strings_are_no_depth() -> None:
    text = compact(['[{"' * 100, "\\", '"', "[" * 100])

    assert get_field(text, ()) == text


@pytest.mark.parametrize(
    "text", [b'"' + b'\\"' * (JSON_SIZE_MAX // 2 - 1), b'"' * JSON_SIZE_MAX, b"\\" * JSON_SIZE_MAX]
)
def test_hostile_texts_are_looked_at_once(text: bytes) -> None:
    """The depth check must stay linear: a quadratic one would take minutes here."""
    started = time.monotonic()

    with pytest.raises(BadDocument):
        get_field(text, ())

    assert time.monotonic() - started < 5


def test_a_document_has_a_bounded_size() -> None:
    with pytest.raises(BadDocument) as caught:
        get_field(b" " * (JSON_SIZE_MAX + 1), ())
    assert caught.value.reason is Reason.JSON_TOO_LARGE
    half = b'"' + b"x" * (JSON_SIZE_MAX // 2) + b'"'
    once = set_field(b"[]", (None,), half, create_parents=False)
    with pytest.raises(BadDocument) as caught:
        set_field(once, (None,), half, create_parents=False)
    assert caught.value.reason is Reason.JSON_TOO_LARGE


@given(tree=trees)
def test_a_document_is_written_as_a_compact_encoder_would(tree: Any) -> None:
    text = json.dumps(tree, indent=1).encode()

    assert get_field(text, ()) == compact(tree)


@given(
    tree=st.dictionaries(st.text(max_size=3), trees, min_size=1, max_size=4),
    field=trees,
    data=st.data(),
)
def test_set_then_get_then_delete(tree: dict[str, Any], field: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(tree)))
    text = set_field(compact(tree), (name,), compact(field), create_parents=False)

    assert get_field(text, (name,)) == compact(field)
    assert json.loads(text) == {**tree, name: field}
    del tree[name]
    assert delete_field(text, (name,)) == compact(tree)


def test_a_document_keeps_its_bytes_until_a_field_is_changed() -> None:
    world = World()
    world.kv(Put(b"d", DOCUMENT, ttl_ns=SECOND))
    assert world.value(b"d") == DOCUMENT
    assert get_field(DOCUMENT, ("a", 1)) == b"2.50"

    assert world.kv(JsonSet(b"d", ("c",), b"0")) == APPLIED
    assert world.value(b"d") == b'{"a":[1,2.50,{"b":null}],"c":0,"n":1E400}'
    assert world.kv(JsonDelete(b"d", ("a",))) == APPLIED
    before = world.state.kv.get(NAMESPACE, b"d", as_of=1)
    assert isinstance(before, KeyValue)
    assert get_field(before.value, ("c",)) == b'"\xc3\xa9"'
    world.pass_time(SECOND)
    assert world.value(b"d") is None


def test_a_refused_change_leaves_the_document() -> None:
    world = World()
    world.put(b"d", b"not json")

    assert world.kv(JsonSet(b"d", ("a",), b"1")) == Refused(Reason.JSON_INVALID)
    assert world.kv(JsonDelete(b"missing", ("a",))) == Refused(Reason.KEY_NOT_FOUND)
    assert world.value(b"d") == b"not json"
