r"""The steps of ``onelog demo``: commands, each with the output that it must have.

A command is a line for a shell. ``shows`` is a regular expression that its output must match. The
names in it (``(?P<first>\d+)``) may be used in later lines and expressions, as ``$first``. Nothing
else is checked: the tour claims only what a reader can see.

All names have the tag ``{tour}``, so that they are in one shard and can be changed together.
"""

from enum import Enum
from typing import NamedTuple


class How(Enum):
    """How a line is run."""

    PLAIN = "until it ends"
    BACKGROUND = "in the background, until the tour ends or it is stopped"
    REPEATED = "again and again, until it shows what it should"
    STOP = "the line says which background process is stopped, as %1 does in a shell"


class Command(NamedTuple):
    """A line, and what it has to show."""

    line: str
    shows: str = ""
    code: int = 0
    how: How = How.PLAIN


class Step(NamedTuple):
    """Some commands that show one thing."""

    title: str
    why: str
    commands: tuple[Command, ...]
    held: str


BATCH = """echo '{"when": [{"key": "order{tour}", "exists": false}],
       "do": [{"op": "put", "key": "order{tour}", "value": "two apples"},
              {"op": "enqueue", "queue": "mail{tour}", "body": "to ann: thank you"},
              {"op": "append_record", "stream": "orders{tour}", "value": "ann: two apples"},
              {"op": "write_points", "measurement": "sales{tour}",
               "times": [1794830400000000000], "fields": {"euros": [19.0]}}]}' > batch.json"""

STEPS = (
    Step(
        "A database",
        "One process, one directory. In the background a watch records every change from now on.",
        (
            Command(
                "onelog serve --data-dir data --shards 1 --listen $api --peer-listen $peers "
                "--http-listen $http",
                how=How.BACKGROUND,
            ),
            Command("onelog admin topology", r"^ +0 +(?!none)\S+ +$api", how=How.REPEATED),
            Command("onelog watch --from start > seen.txt", how=How.BACKGROUND),
        ),
        "a server is up, and it is the only one that the tour talks to",
    ),
    Step(
        "Keys that remember",
        "A version is the index of the log at which the key was written. A read as of an index "
        "says what was true then.",
        (
            Command("onelog kv put 'price{tour}' 9.50", r"version (?P<first>\d+)"),
            Command("onelog kv put 'price{tour}' 8.75", r"version (?P<second>\d+)"),
            Command("onelog kv put 'price{tour}' 9.99 --expect $second", r"version \d+"),
            Command(
                "onelog kv put 'price{tour}' 1.00 --expect $second", r"CONDITION_FAILED", code=4
            ),
            Command("onelog kv history 'price{tour}'", r"9\.99\s(?s:.*)8\.75\s(?s:.*)9\.50\s"),
            Command("onelog kv get 'price{tour}' --as-of $first", r"^9\.50$$"),
        ),
        "the late writer was refused, and the first price is still known",
    ),
    Step(
        "A queue and a worker that fails",
        "Two deliveries, then a message is a dead letter. The worker cannot write to bob.",
        (
            Command("onelog queue create 'dead{tour}'", "created"),
            Command(
                "onelog queue create 'mail{tour}' --max-deliveries 2 --dead-letters 'dead{tour}' "
                "--backoff 100ms",
                "created",
            ),
            Command(
                "printf 'to ann\\nto bob\\nto carl\\n' | onelog queue enqueue 'mail{tour}' --lines",
                "3 messages enqueued",
            ),
            Command(
                "onelog queue consume 'mail{tour}' --limit 4 -- grep -v bob",
                r"^to ann\nto carl$$",
            ),
            Command("onelog queue peek 'dead{tour}'", r"grep ended with 1.*to bob"),
            Command("onelog queue redrive 'dead{tour}'", r"^redrive \d+: 1 message moved back$$"),
            Command("onelog queue consume 'mail{tour}' --limit 1 -- cat", r"^to bob$$"),
            Command(
                "onelog queue show 'mail{tour}' | grep -E 'enqueued|acknow|dead  |redriven'",
                r"enqueued +3\s+acknowledged +3\s+dead +1\s+redriven +1\s",
            ),
        ),
        "no message was lost: three went in, one died and was brought back, three were handled",
    ),
    Step(
        "A stream and a consumer group",
        "Records stay; a group remembers its position, whichever member reads.",
        (
            Command("onelog stream create 'orders{tour}'", "created"),
            Command(
                "printf 'one pear\\nthree plums\\nsix figs\\n' | "
                "onelog stream append 'orders{tour}' --lines",
                "3 records appended",
            ),
            Command("onelog stream group create 'orders{tour}' billing --from 0", "created"),
            Command(
                "onelog stream group consume 'orders{tour}' billing --limit 2",
                r"one pear\n.*three plums$$",
            ),
            Command(
                "onelog stream group consume 'orders{tour}' billing --limit 1",
                r"\A\S+\s+six figs$$",
            ),
            Command(
                "onelog stream tail 'orders{tour}' --from 0 --limit 3",
                r"one pear\n.*three plums\n.*six figs$$",
            ),
        ),
        "the second reader continued where the first one had stopped, and every record stays",
    ),
    Step(
        "A time series",
        "An hour of points, a minute apart, and what they look like.",
        (
            Command(
                'awk \'BEGIN { print "time,host,load"; for (m = 60; m > 0; m--) '
                'print "now-" m "m,a," 50 + 40 * sin(m / 6) }\' | '
                "onelog ts import 'load{tour}' --tag host",
                "60 values of 60 points written",
            ),
            Command(
                "onelog ts query 'load{tour}' load --from now-2h --chart",
                r"host=a +[▁▂▃▄▅▆▇█]{60} +10\.\d+ to 89\.\d+",
            ),
        ),
        "all sixty points are there, one bar for each",
    ),
    Step(
        "All or nothing, over all four",
        "A key, a message, a record and a point, at one index of the log, if the order is new.",
        (
            Command(BATCH),
            Command("onelog transact batch.json", r"done at index \d+ of shard (?P<shard>\d+)"),
            Command("onelog transact batch.json", "CONDITION_FAILED", code=4),
            Command("onelog kv get 'order{tour}'", r"^two apples$$"),
            Command("onelog queue lease 'mail{tour}'", r"\sto ann: thank you$$"),
            Command("onelog stream read 'orders{tour}'", r"\sann: two apples$$"),
            Command("onelog ts query 'sales{tour}' euros --from 0", r"\s19$$"),
        ),
        "the batch happened once, in all four models; the second one changed nothing",
    ),
    Step(
        "The watch saw it all",
        "What the watch of the first step has written meanwhile, here without the times and "
        "without keys that onelog writes itself.",
        (
            Command(
                "sed 's/^[^ ]* *//' seen.txt | grep -vE ' (cg|_ts):'",
                r"kv +put +price\{tour\}  9\.50\n(?s:.*)"
                r"queue +dead +mail\{tour\}(?s:.*)queue +redriven(?s:.*)"
                r"stream +appended +orders\{tour\}.*one pear\n(?s:.*)"
                r"ts +written +load\{tour\}  60 points(?s:.*)"
                r"kv +put +order\{tour\}.*\n"
                r"queue +enqueued +mail\{tour\}.*\n"
                r"stream +appended +orders\{tour\}.*ann: two apples\n"
                r"ts +written +sales\{tour\}.*\n(?s:.*)"
                r"queue +leased",
                how=How.REPEATED,
            ),
        ),
        "every change of every model, once and in the order of the log",
    ),
    Step(
        "The proof",
        "The hash of the whole state, then the server is stopped and the log alone is replayed.",
        (
            Command(
                "onelog admin hash $shard", r"^(?P<hash>[0-9a-f]{16}) at index (?P<index>\d+)$$"
            ),
            Command("kill %1; wait %1", how=How.STOP),
            Command(
                "onelog log replay data --shard $shard --to $index",
                r"state hash $hash at index $index",
            ),
        ),
        "state is a function of the log: the replay has the hash that the server had",
    ),
)
