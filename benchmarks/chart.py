"""Charts as PNG files, drawn without a display; Matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def bars(
    path: Path,
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    logarithmic: bool = False,
    width: float = 7,
    digits: int = 0,
) -> None:
    """A group of bars for each of ``groups``, one bar for each of ``series``, each with its figure."""
    figure, axes = _plots().subplots(figsize=(width, 4))
    share = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [index + (number - (len(series) - 1) / 2) * share for index in range(len(groups))]
        drawn = axes.bar(places, values, share, label=name)
        axes.bar_label(drawn, labels=[f"{value:,.{digits}f}" for value in values], fontsize=8)
    if logarithmic:
        axes.set_yscale("log")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_title(title)
    axes.margins(y=0.15)
    axes.legend()
    _save(figure, path)


def lines(
    path: Path,
    title: str,
    x_label: str,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
) -> None:
    """A panel below another for each of ``panels``, each with its named lines of (x, y)."""
    figure, grid = _plots().subplots(
        len(panels), 1, figsize=(8, 2.2 * len(panels)), sharex=True, squeeze=False
    )
    for axes, (label, series) in zip(grid[:, 0], panels.items(), strict=True):
        for name, (x, y) in series.items():
            axes.plot(x, y, label=name, linewidth=1)
        axes.set_ylabel(label, fontsize=8)
        axes.set_ylim(bottom=0)
        if len(series) > 1:
            axes.legend(fontsize=7)
    grid[0, 0].set_title(title)
    grid[-1, 0].set_xlabel(x_label)
    _save(figure, path)


def histogram(
    path: Path, title: str, x_label: str, series: Mapping[str, Sequence[float]], *, last: float
) -> None:
    """The share of values by their size, up to ``last``: a step line for each of ``series``."""
    figure, axes = _plots().subplots(figsize=(8, 4))
    edges = [last * number / 60 for number in range(61)]
    for name, values in series.items():
        weights = [100 / len(values)] * len(values)
        axes.hist(values, bins=edges, weights=weights, histtype="step", label=name)
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel("% of the records")
    axes.legend(fontsize=8)
    _save(figure, path)


def curves(
    path: Path,
    title: str,
    panels: Mapping[str, tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]],
) -> None:
    """Panels side by side: for each x label a y label and named curves of (x, y).

    An axis is logarithmic where its values need it; otherwise it begins at 0.
    """
    figure, grid = _plots().subplots(1, len(panels), figsize=(3.6 * len(panels), 3.4), squeeze=False)
    for axes, (x_label, (y_label, series)) in zip(grid[0], panels.items(), strict=True):
        for name, (x, y) in series.items():
            axes.plot(x, y, marker="o", markersize=3, label=name, linewidth=1)
        if _is_wide([value for x, _ in series.values() for value in x]):
            axes.set_xscale("log")
        if _is_wide([value for _, y in series.values() for value in y]):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label, fontsize=8)
        axes.set_ylabel(y_label, fontsize=8)
        if len(series) > 1:
            axes.legend(fontsize=7)
    figure.suptitle(title)
    _save(figure, path)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 10


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    _plots().close(figure)


def _plots() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
