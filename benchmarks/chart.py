"""Charts as PNG files, drawn without a display; Matplotlib is imported when one is drawn.

One style for all: letters that are read at half the size, and the colours of Okabe and Ito, which people with
any colour vision tell apart; lines differ in their markers and dashes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
_MARKERS = "os^DvPX*"
_DASHES = ("-", "--", ":", "-.")
_STYLE = {
    "font.size": 15,
    "axes.titlesize": 17,
    "figure.titlesize": 17,
    "axes.labelsize": 15,
    "legend.fontsize": 14,
    "lines.linewidth": 2.2,
    "lines.markersize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d8d8d8",
}
_MANY = 3  # series beside each other, before they are bars below each other with names
_DPI = 100


def bars(
    path: Path,
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    logarithmic: bool = False,
    digits: int = 0,
) -> None:
    """A bar with its figure for each of ``series`` in each of ``groups``: panels if they are many."""
    with _drawing():
        if len(series) > _MANY or len(groups) * len(series) > 3 * _MANY:
            figure = _bars_below(groups, series, logarithmic=logarithmic, digits=digits)
        else:
            figure = _bars_beside(groups, series, logarithmic=logarithmic, digits=digits)
        figure.suptitle(title)
        _save(figure, path)


def _bars_beside(
    groups: Sequence[str], series: Mapping[str, Sequence[float]], *, logarithmic: bool, digits: int
) -> Any:
    figure, axes = _plots().subplots(figsize=(10, 5.5))
    share = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [index + (number - (len(series) - 1) / 2) * share for index in range(len(groups))]
        drawn = axes.bar(places, values, share, label=name, color=COLOURS[number])
        axes.bar_label(drawn, labels=[f"{value:,.{digits}f}" for value in values], padding=2)
    if logarithmic:
        axes.set_yscale("log")
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.3)
    if len(series) > 1:
        axes.legend(loc="upper center", ncols=len(series), frameon=False)
    return figure


def _bars_below(
    groups: Sequence[str], series: Mapping[str, Sequence[float]], *, logarithmic: bool, digits: int
) -> Any:
    """Panels beside each other: one for each of the shorter of the two, with the other as its bars."""
    table = {name: dict(zip(groups, values, strict=True)) for name, values in series.items()}
    by_group = {group: {name: row[group] for name, row in table.items()} for group in groups}
    panels = by_group if len(groups) <= len(series) else table
    names = list(next(iter(panels.values())))
    figure, grid = _plots().subplots(
        1, len(panels), figsize=(3 + 4.5 * len(panels), 1.6 + 0.45 * len(names)), sharey=True, squeeze=False
    )
    for axes, (title, values) in zip(grid[0], panels.items(), strict=True):
        colours = [COLOURS[0] if name.startswith("millwheel") else COLOURS[1] for name in names]
        if not any(name.startswith("millwheel") for name in names):
            colours = [COLOURS[0]] * len(names)
        drawn = axes.barh(range(len(names)), list(values.values()), color=colours)
        axes.bar_label(drawn, labels=[f"{value:,.{digits}f}" for value in values.values()], padding=4)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(title)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.3)
        axes.tick_params(axis="x", labelsize=12)
        if logarithmic:
            axes.set_xscale("log")
    grid[0][0].invert_yaxis()
    return figure


def lines(
    path: Path,
    title: str,
    x_label: str,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
) -> None:
    """A panel below another for each of ``panels``, each with its named lines of (x, y)."""
    with _drawing():
        figure, grid = _plots().subplots(
            len(panels), 1, figsize=(10, 1.2 + 2.8 * len(panels)), sharex=True, squeeze=False
        )
        for axes, (label, series) in zip(grid[:, 0], panels.items(), strict=True):
            for number, (name, (x, y)) in enumerate(series.items()):
                axes.plot(x, y, label=name, color=COLOURS[number], linestyle=_DASHES[number % len(_DASHES)])
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
            if len(series) > 1:
                axes.legend()
        grid[-1, 0].set_xlabel(x_label)
        figure.suptitle(title)
        _save(figure, path)


def histogram(
    path: Path, title: str, x_label: str, series: Mapping[str, Sequence[float]], *, last: float
) -> None:
    """The share of values by their size, up to ``last``: a step line for each of ``series``."""
    with _drawing():
        figure, axes = _plots().subplots(figsize=(10, 5.5))
        edges = [last * number / 60 for number in range(61)]
        for number, (name, values) in enumerate(series.items()):
            weights = [100 / len(values)] * len(values)
            style = {"color": COLOURS[number], "linestyle": _DASHES[number % len(_DASHES)], "linewidth": 2.2}
            axes.hist(values, bins=edges, weights=weights, histtype="step", label=name, **style)
        axes.set_xlabel(x_label)
        axes.set_ylabel("% of the records")
        axes.legend()
        figure.suptitle(title)
        _save(figure, path)


def curves(
    path: Path,
    title: str,
    panels: Mapping[str, tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]],
) -> None:
    """Panels side by side: for each x label a y label and named curves of (x, y).

    An axis is logarithmic where its values need it; otherwise it begins at 0.
    """
    with _drawing():
        figure, grid = _plots().subplots(1, len(panels), figsize=(2 + 4.8 * len(panels), 5.5), squeeze=False)
        for axes, (x_label, (y_label, series)) in zip(grid[0], panels.items(), strict=True):
            for number, (name, (x, y)) in enumerate(series.items()):
                style = {"color": COLOURS[number % len(COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
                axes.plot(x, y, label=name, linestyle=_DASHES[number % len(_DASHES)], **style)
            if _is_wide([value for x, _ in series.values() for value in x]):
                axes.set_xscale("log")
            if _is_wide([value for _, y in series.values() for value in y]):
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            if len(series) > 1:
                axes.legend()
        figure.suptitle(title)
        _save(figure, path)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 10


def _drawing() -> Any:
    """The style, for as long as a chart is drawn."""
    return _plots().rc_context(_STYLE)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    _plots().close(figure)


def _plots() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
