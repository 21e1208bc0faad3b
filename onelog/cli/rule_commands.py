"""``onelog ts rule``: downsampling, from one measurement into another."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import Session, command, group
from onelog.cli.values import duration_s, shown_duration

if TYPE_CHECKING:
    from onelog import Rule

app = group("Downsampling: aggregates of each window are written to another measurement.")

MeasurementName = Annotated[str, typer.Argument(metavar="MEASUREMENT", help="The measurement.")]
RuleName = Annotated[str, typer.Argument(metavar="RULE", help="The rule.")]


def shown_rule(rule: "Rule") -> str:
    """Return what a rule does."""
    names = ", ".join(rule.aggregates)
    return f"{names} of {shown_duration(rule.window_s)} into {rule.target_measurement}"


@command(app, "set")
def set_(
    session: Session,
    measurement: MeasurementName,
    name: RuleName,
    *,
    window: Annotated[
        float, typer.Option("--window", metavar="TIME", parser=duration_s, help="Like 1m.")
    ],
    aggregates: Annotated[
        list[str],
        typer.Option("--aggregate", "-a", metavar="NAME", help="mean, max, …; repeatable."),
    ],
    target: Annotated[str, typer.Option("--into", metavar="MEASUREMENT", help="Where to.")],
) -> None:
    """Set a rule: a field f becomes f_mean, f_max, … of each window, in another measurement.

    \b
    Examples:
      onelog ts rule set 'cpu{m}' hourly --window 1h -a mean -a max --into 'cpu_hourly{m}'
    """
    from onelog import Rule

    chosen: Any = tuple(aggregates)
    rule = Rule(name, window, chosen, target)
    session.client.ts.set_rule(measurement, rule)
    session.output.result(rule, f"rule {name} set: {shown_rule(rule)}")


@command(app, "list", reads=True)
def list_(session: Session, measurement: MeasurementName) -> None:
    """List the rules of a measurement.

    \b
    Examples:
      onelog ts rule list 'cpu{m}'
    """
    columns = (
        ("rule", lambda rule: rule.name),
        ("window", lambda rule: shown_duration(rule.window_s)),
        ("aggregates", lambda rule: list(rule.aggregates)),
        ("into", lambda rule: rule.target_measurement),
    )
    rules = session.client.ts.info(measurement, read=session.read).rules
    session.output.table(rules, columns, nothing="there is no rule")


@command(app)
def delete(session: Session, measurement: MeasurementName, name: RuleName) -> None:
    """Delete a rule; what it wrote stays.

    \b
    Examples:
      onelog ts rule delete 'cpu{m}' hourly
    """
    session.client.ts.delete_rule(measurement, name)
    session.output.result({"rule": name}, f"rule {name} deleted")
