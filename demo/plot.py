"""The plot of the run: how late each carrier's flights left, week by week, and how many left in rain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

WEEK_DAYS: Final = 7
WEEKS: Final = 52
HIGHLIGHTED_FLIGHTS_MIN: Final = 10_000
DRAWN_DEPARTURES_MIN: Final = 20
"""A week's mean of fewer flights says more about them than about the carrier."""
# Told apart by people who see colours otherwise (Okabe and Ito).
_WORST, _BEST, _LARGEST, _OTHERS, _RAIN, _INK = "#d55e00", "#0072b2", "#000000", "#c4c4c4", "#7fb2d6", "#333333"
# Fonts that each release measures anew would make each run's picture another.
_STYLE: Final = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def by_week(delays: Any) -> Any:
    """The daily rows (`demo.expected.COLUMNS`) summed by airline and week; the year's last day is in the last week."""
    import pandas as pd

    day = pd.to_datetime(delays.day)
    week = ((day.dt.day_of_year - 1) // WEEK_DAYS).clip(upper=WEEKS - 1)
    sums = ["departed", "departure_delay_minutes", "departed_in_rain"]
    return delays.assign(week=week).groupby(["airline", "week"], as_index=False)[sums].sum()


def highlighted(delays: Any) -> list[tuple[str, str, str]]:
    """Which airlines are drawn in colour, as (name, what it is, colour).

    Of the large ones the most delayed, the most punctual and the one with most flights; none comes twice.
    """
    totals = delays.groupby("airline")[["flights", "departed", "departure_delay_minutes"]].sum()
    large = totals[totals.flights >= HIGHLIGHTED_FLIGHTS_MIN]
    if large.empty:
        return []
    mean = large.departure_delay_minutes / large.departed
    choices = [
        (mean.idxmax(), "most delayed", _WORST),
        (mean.idxmin(), "most punctual", _BEST),
        (large.flights.idxmax(), "most flights", _LARGEST),
    ]
    return list({name: (name, what, colour) for name, what, colour in reversed(choices)}.values())[::-1]


def draw(delays: Any, path: Path) -> None:
    """Writes the plot as PNG. Raises OSError when the file cannot be written."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    weeks = by_week(delays)
    with mpl.rc_context(_STYLE):
        # Neither pyplot nor a display: the figure is drawn in memory and forgotten.
        figure = Figure(figsize=(9.6, 5.6), dpi=110)
        FigureCanvasAgg(figure)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        _draw_delays(top, weeks, highlighted(delays))
        _draw_rain(bottom, weeks)
        figure.suptitle("How late flights left New York in 2013", x=0.065, y=0.975, ha="left", size=14, weight="bold")
        figure.subplots_adjust(left=0.065, right=0.8, top=0.86, bottom=0.07, hspace=0.3)
        figure.savefig(path, format="png", pil_kwargs={"optimize": True})


def _draw_delays(axes: Any, weeks: Any, highlights: list[tuple[str, str, str]]) -> None:
    enough = weeks[weeks.departed >= DRAWN_DEPARTURES_MIN]
    means = (enough.departure_delay_minutes / enough.departed).groupby([enough.airline, enough.week]).first().unstack()
    in_colour = {name for name, _what, _colour in highlights}
    for name, line in means.iterrows():
        if name not in in_colour:
            axes.plot(line.index, line, color=_OTHERS, linewidth=0.9, zorder=1)
    labels = []
    for name, what, colour in highlights:
        line = means.loc[name].dropna()
        axes.plot(line.index, line, color=colour, linewidth=2, zorder=2)
        labels.append((float(line.iloc[-1]), f"{name}\n({what})", colour))
    axes.axhline(0, color=_INK, linewidth=0.8, zorder=1)
    axes.set_title("Mean departure delay per week in minutes; grey: the other carriers", loc="left", size=10)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.margins(x=0)
    _label_ends(axes, labels)


def _label_ends(axes: Any, labels: list[tuple[float, str, str]]) -> None:
    """Each line's name at its right end, moved up as far as the one below it needs."""
    bottom, top = axes.get_ylim()
    room, last = (top - bottom) * 0.12, float("-inf")
    for end, text, colour in sorted(labels):
        last = max(end, last + room)
        axes.annotate(
            text,
            (WEEKS - 1, last),
            (8, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            size=9,
            annotation_clip=False,
        )


def _draw_rain(axes: Any, weeks: Any) -> None:
    totals = weeks.groupby("week")[["departed", "departed_in_rain"]].sum()
    axes.bar(totals.index, 100 * totals.departed_in_rain / totals.departed, color=_RAIN, width=0.8)
    axes.set_title("Departures in an hour with rain or snow, %", loc="left", size=10)
    month_names = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    month_starts = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]
    axes.set_xticks([day / WEEK_DAYS for day in month_starts], month_names, ha="left")
    axes.set_xlim(-0.5, WEEKS - 0.5)
