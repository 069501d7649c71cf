"""Charts as PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

matplotlib.use("Agg")

import matplotlib.pyplot as plt


def bars(
    path: Path,
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    logarithmic: bool = False,
) -> None:
    """A group of bars for each of ``groups``, one bar for each of ``series``, each with its figure."""
    figure, axes = plt.subplots(figsize=(7, 4))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [index + (number - (len(series) - 1) / 2) * width for index in range(len(groups))]
        drawn = axes.bar(places, values, width, label=name)
        axes.bar_label(drawn, labels=[f"{value:,.0f}" for value in values], fontsize=8)
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
    figure, grid = plt.subplots(len(panels), 1, figsize=(8, 2.2 * len(panels)), sharex=True, squeeze=False)
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


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
