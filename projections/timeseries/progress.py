"""What the progress of rules means for others: for points that come late, and for retention.

A trim leaves what a rule has still to read. Two bounds keep that from being for ever. A rule that
has every point behind it holds nothing back. And one that should go on and does not (a block that
nobody can read) is waited for until a point was due for TRIM_GRACE_NS and the rule stood still for
as long. All of it is computed from the state and a timestamp: a leader asks when it makes a
``ts_trim``, replicas ask when they apply it.
"""

from dataclasses import replace

from onelog.projections.timeseries.entities import Measurement
from onelog.projections.timeseries.limits import (
    TIME_NS_MAX,
    TIME_NS_MIN,
    TRIM_GRACE_NS,
    TRIM_SLACK_DIVISOR,
    TRIM_SLACK_NS_MAX,
    TRIM_SLACK_NS_MIN,
)
from onelog.projections.timeseries.rules import Progress, Rule, window_after, window_start


def first_whole_ns(measurement: Measurement, rule: Rule) -> int:
    """Return where the first window starts of which retention has cut nothing."""
    if measurement.trimmed_ns == TIME_NS_MIN:
        return TIME_NS_MIN
    return window_after(measurement.trimmed_ns, rule.window_ns)


def back_to(measurement: Measurement, rule: Rule, time_ns: int) -> int:
    """Return where to go on so that the window of ``time_ns`` is written again.

    Never before what retention has trimmed: a window that lost points would be written wrong.
    """
    start_ns = window_start(time_ns, rule.window_ns)
    return max(start_ns, first_whole_ns(measurement, rule))


def rules_after(measurement: Measurement, time_ns: int) -> dict[str, tuple[Rule, Progress]] | None:
    """Return the rules after a point of ``time_ns`` came; None if it is late for none."""
    changed: dict[str, tuple[Rule, Progress]] = {}
    for name, (rule, progress) in measurement.rules.items():
        if progress.slice_index:
            if time_ns < min(progress.slice_to_ns, progress.late_ns):
                changed[name] = (rule, replace(progress, late_ns=time_ns))
        elif time_ns < progress.done_ns:
            done_ns = back_to(measurement, rule, time_ns)
            if done_ns < progress.done_ns:
                changed[name] = (rule, replace(progress, done_ns=done_ns))
    return {**measurement.rules, **changed} if changed else None


def trim_allowed_ns(measurement: Measurement, now_ns: int) -> int:
    """Return up to where a trim may go at this time: rules have read what is before."""
    allowed_ns = now_ns - measurement.config.retention_ns
    for rule, progress in measurement.rules.values():
        waiting_ns = _waiting_ns(measurement, rule, progress)
        if now_ns >= progress.moved_ns + TRIM_GRACE_NS:
            waiting_ns = max(waiting_ns, now_ns - _patience_ns(rule))
        allowed_ns = min(allowed_ns, waiting_ns)
    # What was trimmed already is gone for readers: a sweep under way goes on.
    return min(max(allowed_ns, measurement.trimmed_ns), TIME_NS_MAX)


def trim_due_ns(measurement: Measurement) -> int | None:
    """Return when retention has something to drop; None while there is no such thing."""
    retention_ns = measurement.config.retention_ns
    if not retention_ns:
        return None
    if measurement.sweep_after:
        return 0
    if measurement.oldest_ns > TIME_NS_MAX:
        return None
    slack_ns = min(max(retention_ns // TRIM_SLACK_DIVISOR, TRIM_SLACK_NS_MIN), TRIM_SLACK_NS_MAX)
    cutoff_ns = measurement.oldest_ns + slack_ns
    due_ns = cutoff_ns + retention_ns
    for rule, progress in measurement.rules.values():
        if _waiting_ns(measurement, rule, progress) < cutoff_ns:
            due_ns = max(due_ns, cutoff_ns + _patience_ns(rule), progress.moved_ns + TRIM_GRACE_NS)
    return due_ns


def _waiting_ns(measurement: Measurement, rule: Rule, progress: Progress) -> int:
    """Return where the first points are that a rule has still to read, if there are any."""
    waiting_ns = min(progress.done_ns, window_start(progress.late_ns, rule.window_ns))
    return waiting_ns if measurement.newest_ns >= waiting_ns else TIME_NS_MAX


def _patience_ns(rule: Rule) -> int:
    """Return how old a point is that the rule should have read long ago."""
    return rule.window_ns + rule.delay_ns + TRIM_GRACE_NS
