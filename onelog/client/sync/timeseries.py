"""``onelog/client/timeseries.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable, Mapping, Sequence

from onelog.client.arrays import ArrayLike
from onelog.client.blocking import Facade, Items
from onelog.client.tables import Rows
from onelog.client.times import Time
from onelog.client.timeseries import (
    Aggregate,
    Matchers,
    MeasurementConfig,
    MeasurementInfo,
    Rule,
    SeriesData,
)
from onelog.client.values import Key, Read


class TimeSeries(Facade):
    """Time series: a measurement with tags is a series, which has points with fields."""

    def write(
        self,
        measurement: str,
        times_ns: ArrayLike,
        fields: Mapping[str, ArrayLike],
        *,
        tags: Mapping[str, str] | None = None,
    ) -> int:
        """Write points of one series; return how many values were written.

        Times may be in any order: int64 nanoseconds, datetime64 (UTC), or datetimes with a zone.
        Each field has one value for each time. Up to 100,000 values are one atomic write. More are
        written in parts, one after the other; if one fails, ``written_count`` in the metadata of
        the error is the number of values in the parts before it.
        """
        found: int = self._thread.run(self._core.write(measurement, times_ns, fields, tags=tags))
        return found

    def write_many(self, measurement: str, series: Iterable[SeriesData]) -> int:
        """Write points of several series at once; return how many values were written.

        Up to 100,000 values of 5,000 series are one atomic write; see ``write`` for more.
        """
        found: int = self._thread.run(self._core.write_many(measurement, series))
        return found

    def query(
        self,
        measurement: str,
        field: str,
        from_ns: Time,
        to_ns: Time,
        *,
        where: Matchers | None = None,
        aggregate: Aggregate = "",
        percentile: float | None = None,
        window_s: float = 0.0,
        group_by: Sequence[str] = (),
        by_series: bool = False,
        top: int = 0,
        limit: int = 0,
        read: Read | None = None,
    ) -> Rows[SeriesData]:
        """Return points of a field, or aggregates of windows, from ``from_ns`` to before ``to_ns``.

        Times are nanoseconds since 1970, datetimes with a zone, datetime64 (UTC), or texts such as
        ``now-1h`` and RFC 3339.

        Without ``aggregate`` the result is the points of each series. Aggregates have one result
        for each combination of the tags in ``group_by``, with ``by_series`` one for each series,
        else one for all. Without ``window_s`` everything is one window. ``where`` selects series by
        their tags, ``top`` the groups with the largest results, ``limit`` the first points or
        windows of each group; ``percentile`` (0 to 100) is for the aggregate of that name.
        """
        found: Rows[SeriesData] = self._thread.run(
            self._core.query(
                measurement,
                field,
                from_ns,
                to_ns,
                where=where,
                aggregate=aggregate,
                percentile=percentile,
                window_s=window_s,
                group_by=group_by,
                by_series=by_series,
                top=top,
                limit=limit,
                read=read,
            )
        )
        return found

    def series(
        self, measurement: str, *, where: Matchers | None = None, read: Read | None = None
    ) -> Items[Mapping[str, str]]:
        """Yield the tags of each matching series."""
        return self._thread.iterate(self._core.series(measurement, where=where, read=read))

    def delete(
        self,
        measurement: str,
        *,
        where: Matchers | None = None,
        first_ns: Time | None = None,
        last_ns: Time | None = None,
    ) -> int:
        """Delete points of matching series, or whole series without a time; return how many.

        Both times are included; see ``query`` for what a time may be.
        """
        found: int = self._thread.run(
            self._core.delete(measurement, where=where, first_ns=first_ns, last_ns=last_ns)
        )
        return found

    def create(
        self, measurement: str, config: MeasurementConfig | None = None, *, exist_ok: bool = False
    ) -> None:
        """Create a measurement with these settings; a first write would create it with defaults.

        With ``exist_ok`` an existing one stays as it is.
        """
        self._thread.run(self._core.create(measurement, config, exist_ok=exist_ok))

    def configure(self, measurement: str, config: MeasurementConfig) -> None:
        """Replace the settings of a measurement."""
        self._thread.run(self._core.configure(measurement, config))

    def drop(self, measurement: str) -> None:
        """Delete a measurement with all of its series."""
        self._thread.run(self._core.drop(measurement))

    def info(self, measurement: str, *, read: Read | None = None) -> MeasurementInfo:
        """Return the settings and the state of a measurement."""
        found: MeasurementInfo = self._thread.run(self._core.info(measurement, read=read))
        return found

    def measurements(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> Items[MeasurementInfo]:
        """Yield the measurements whose name begins with ``prefix``.

        With ``routing_key`` only those in its shard. A read with an index (``min_index``,
        ``as_of_index``) needs one, because an index belongs to one shard.
        """
        return self._thread.iterate(
            self._core.measurements(prefix, routing_key=routing_key, read=read)
        )

    def set_rule(self, measurement: str, rule: Rule) -> None:
        """Set a downsampling rule; a field ``f`` becomes ``f_mean``, ``f_max``, … in its target."""
        self._thread.run(self._core.set_rule(measurement, rule))

    def delete_rule(self, measurement: str, name: str) -> None:
        """Delete a downsampling rule; the points that it wrote stay."""
        self._thread.run(self._core.delete_rule(measurement, name))
