"""Commands drawn from few keys and small numbers, so that they meet."""

from hypothesis import strategies as st

from onelog.projections.conditions import Comparison, Condition, Target
from onelog.projections.kv.commands import (
    Append,
    Command,
    Delete,
    DeleteRange,
    Get,
    Increment,
    JsonDelete,
    JsonSet,
    LeaseGrant,
    LeaseKeepalive,
    LeaseRevoke,
    Maximum,
    Minimum,
    Nested,
    Put,
    PutMany,
    Touch,
    Transaction,
    put_bodies,
)
from onelog.projections.limits import I64_MAX, I64_MIN, TTL_NS_MAX, U64_MAX

SECOND = 1_000_000_000

keys = st.sampled_from([b"a", b"ab", b"b", b"c", b"cg", b"d\xff", b"\xff", b"json", b"n1", b"n2"])
small = st.binary(max_size=6)
large = st.builds(
    lambda size, byte: bytes((byte,)) * size, st.integers(500, 700), st.integers(0, 255)
)
values = st.one_of(small, small, st.binary(min_size=64, max_size=80), large)
numbers = st.one_of(st.integers(-3, 3), st.sampled_from([I64_MAX, I64_MIN]))
numbers_as_text = numbers.map(lambda number: b"%d" % number)
lifetimes = st.integers(1, 5).map(lambda seconds: seconds * SECOND)
versions = st.integers(0, 30)
leases = st.integers(1, 30)
member_names = st.sampled_from(["x", "y", "ä"])
documents = st.sampled_from([b"1", b'"s"', b"[]", b"{}", b'{"x":[1,2],"y":{"x":3}}', b"null", b"{"])
steps = st.one_of(member_names, st.integers(0, 2), st.none())
paths = st.lists(steps, max_size=3).map(tuple)
optional_versions = st.one_of(st.none(), versions)

compared = st.sampled_from([c for c in Comparison if c is not Comparison.NONE])
conditions = st.one_of(
    st.builds(Condition, keys, st.sampled_from([Target.EXISTS, Target.MISSING])),
    st.builds(Condition, keys, st.just(Target.VERSION), compared, version=versions),
    st.builds(Condition, keys, st.just(Target.VALUE), compared, value=small),
)

puts = st.one_of(
    st.builds(Put, keys, st.one_of(values, numbers_as_text)),
    st.builds(Put, keys, documents),
    st.builds(
        Put,
        keys,
        values,
        ttl_ns=st.one_of(st.none(), lifetimes),
        lease=st.one_of(st.none(), leases),
        expected=optional_versions,
    ),
)
ranges = st.builds(
    lambda bounds, limit, has_end: DeleteRange(bounds[0], bounds[1] if has_end else None, limit),
    st.tuples(keys, keys).filter(lambda pair: pair[0] < pair[1]),
    st.integers(1, 3),
    st.booleans(),
)
operations: st.SearchStrategy[Nested] = st.one_of(
    puts,
    st.builds(Delete, keys, optional_versions),
    st.builds(Touch, keys, st.one_of(st.just(0), lifetimes), optional_versions),
    st.builds(Increment, keys, numbers),
    st.builds(Minimum, keys, numbers),
    st.builds(Maximum, keys, numbers),
    st.builds(Append, keys, values),
    st.builds(JsonSet, keys, paths, documents, st.booleans()),
    st.builds(JsonDelete, keys, paths),
    ranges,
)
transactions = st.builds(
    Transaction,
    st.lists(conditions, max_size=2).map(tuple),
    st.lists(st.one_of(operations, st.builds(Get, keys)), max_size=4).map(tuple),
    st.lists(st.one_of(operations, st.builds(Get, keys)), max_size=2).map(tuple),
)
puts_at_once = st.builds(
    lambda pairs, ttl_ns: PutMany(
        put_bodies([key for key, _ in pairs], [value for _, value in pairs], ttl_ns)
    ),
    st.lists(st.tuples(keys, st.one_of(values, numbers_as_text)), min_size=1, max_size=6),
    st.one_of(st.none(), st.none(), lifetimes),
)
commands: st.SearchStrategy[Command] = st.one_of(
    operations,
    puts_at_once,
    operations,
    puts,
    transactions,
    st.builds(LeaseGrant, lifetimes),
    st.builds(LeaseKeepalive, leases),
    st.builds(LeaseRevoke, leases),
)

# Every value that a field can hold, for the codec; not for state, where nothing would meet.
any_key = st.binary(min_size=1, max_size=40).filter(
    lambda key: not key.startswith((b"cg:", b"_ts:"))
)
any_u64 = st.integers(0, U64_MAX)
any_i64 = st.integers(I64_MIN, I64_MAX)
any_ttl = st.integers(1, TTL_NS_MAX)
