"""What the world models of Figure 10's runs make of what happened: their videos, and the returns that they expect."""

import numpy as np

from made.experiments import plots
from made.experiments.store.table import Table
from made.experiments.types import PaperFigure

_AXES = ("paid", "imagined")
ROW, BELOW = 1.5, 0.9  # inches: a method, and what the words under the figure take


def draw(table: Table) -> list[PaperFigure]:
    """A row for each method of whose model something was kept; nothing where there is none."""
    labels = [label for label in table.labels() if table.snapshots(label, "dream/paid")]
    if not labels:
        return []
    videos = {label: found[0][-1] for label in labels if (found := table.snapshots(label, "dream/film"))}
    if videos:
        height = ROW + BELOW / len(labels)
        fig, axes = plots.figure(len(labels), 2, height=height, gridspec_kw={"width_ratios": (3, 2)})
        for label, (strip, _) in zip(labels, axes, strict=True):
            _video(strip, videos.get(label))
        fields = list(axes[:, 1])
    else:
        fig, fields = plots.panels(len(labels), height=2.2)
    for label, ax in zip(labels, fields, strict=True):
        _returns(ax, table, label)
    points = "eturns of windows of the replay after five observations, as paid with the bonus and as the model expects them, "
    points += "all seeds; on the dashed line they are equal."
    seen = "Left, of the first seed: a window of the replay above, below it the model, told the first five observations and "
    seen += "then the actions alone; at the first moment, the fifth, and three later ones, the last one at the end. Right: r"
    text = (seen if videos else "R") + points
    return [PaperFigure("dmc_dreams", fig, plots.caption(fig, text))]


def _video(ax, video: np.ndarray | None) -> None:
    """Moments [K, h, 2w, 3], the truth above the model."""
    with plots.style():
        ax.set_axis_off()
        if video is None:
            return
        width = video.shape[2] // 2
        rows = [np.concatenate(list(video[:, :, at : at + width]), axis=1) for at in (0, width)]
        ax.imshow(np.concatenate(rows), interpolation="nearest", aspect="equal")


def _returns(ax, table: Table, label: str) -> None:
    """Imagined against paid returns, a point a window."""
    paid, imagined = (np.concatenate([x[-1] for x in table.snapshots(label, f"dream/{name}")]) for name in _AXES)
    low, high = (float(pick(np.concatenate([paid, imagined]))) for pick in (np.min, np.max))
    with plots.style():
        ax.plot((low, high), (low, high), color="#888888", linewidth=0.6, linestyle="--")
        ax.plot(paid, imagined, linestyle="", marker="o", markersize=2.5, alpha=0.6)
    plots.title(ax, label, x=_AXES[0], y=_AXES[1])
