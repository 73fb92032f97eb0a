"""Figures of tables: curves, estimates and heat maps in one style, with one color for a method everywhere.

No global state of matplotlib is touched, and it is imported on first use.
"""

import io
import math
import os
import re
import textwrap
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from made.core import safe_files
from made.experiments.statistics import CensoredTimes, interval, n_seeds_text
from made.experiments.store.table import Table
from made.training.paths import make_dir

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 6.9  # inches: the width of one column and of the text of a page
PALETTE_SIZE, EXACT = 256, 128  # colors of a saved PNG, and how many of them are the commonest, kept exactly
_SOLID, _DASH, _DOT, _MIX = "-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5))


class Style(NamedTuple):
    """How a method looks: its name in a legend, color, line and marker."""

    text: str
    color: str
    line: Any = _SOLID
    marker: str = "o"


# Okabe and Ito's colors, safe for the common forms of color blindness; yellow is darkened to show on white.
_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_YELLOW, _BLUE, _RED, _PURPLE, _GREY = "#B5A300", "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"

COLORS: dict[str, Style] = {
    "none": Style("no bonus", _BLACK, _DASH, "x"),
    "greedy": Style("greedy", _BLACK, _DOT, "+"),
    "epsilon-greedy": Style("epsilon-greedy", _GREY, _DASH, "v"),
    "uniform": Style("uniform", _GREY, _DOT, "1"),
    "hoeffding": Style("Hoeffding", _BLUE, _SOLID, "s"),
    "bernstein": Style("Bernstein", _GREEN, _DASH, "D"),
    "inverse": Style("1/N", _PURPLE, _MIX, "^"),
    "made": Style("MADE", _RED, _SOLID, "o"),
    "made-geometric": Style("MADE, geometric", _ORANGE, _DASH, "p"),
    "pg": Style("PG", _BLACK, _SOLID, "x"),
    "pg+e": Style("PG+E", _BLUE, _DASH, "s"),
    "pg+re": Style("PG+RE", _GREEN, _MIX, "D"),
    "pg+made": Style("PG+MADE", _RED, _SOLID, "o"),
    "rnd": Style("RND", _SKY, _SOLID, "s"),
    "icm": Style("ICM", _GREEN, _SOLID, "^"),
    "ride": Style("RIDE", _PURPLE, _DASH, "D"),
    "noveld": Style("NovelD", _BLUE, _MIX, "v"),
    "bebold": Style("BeBold", _BLUE, _SOLID, "v"),
    "gate": Style("first-visit mask alone", _GREEN, _MIX, "P"),
    "printed": Style("as printed", _GREY, _DOT, "x"),
    "amigo": Style("AMIGo", _YELLOW, _DASH, "P"),
    "re3": Style("RE3", _GREEN, _DOT, "D"),
    "dreamer": Style("Dreamer", _BLACK, _MIX, "*"),
    "rad": Style("RAD", _GREY, _SOLID, "x"),
}
VARIANTS = {  # the names of variants whose labels say something else
    "gated": "first-visit {}",
    "ungated": "{} without first-visit mask",
    "on bebold": "{} on BeBold",
    "rnd": "RND, {}",
    "bebold": "BeBold, {}",
    "made": "MADE, {}",
    "made gated": "first-visit MADE, {}",
}
CYCLE = (_RED, _BLUE, _GREEN, _ORANGE, _PURPLE, _SKY, _BLACK)  # for the variants of one method
# Paul Tol's muted colors less those close to the above: for methods that the table does not name.
_OTHERS = ("#332288", "#88CCEE", "#117733", "#999933", "#DDCC77", "#882255", "#AA4499")


def style_of(name: str) -> Style:
    """The look of a method, the same in every figure.

    A variant, "made/B=1000", is a shade of its method's color, darker for a larger number. The look of a name that is
    not in `COLORS` follows from its letters.

    >>> style_of("made").color == style_of("pg+made").color, style_of("made/B=1000").text
    (True, 'MADE, B=1000')
    """
    method, _, variant = name.partition("/")
    if name in COLORS:
        return COLORS[name]
    if variant and method in COLORS:
        style, digest = COLORS[method], zlib.crc32(variant.encode())
        number = re.search(r"\d+(\.\d+)?(e[+-]?\d+)?", variant)
        size = math.log10(max(float(number[0]), 1e-9)) / 5 if number else (digest % 100) / 100
        line = (_SOLID, _DASH, _DOT, _MIX)[round(5 * size) % 4 if number else digest % 4]
        color, marker = _shade(style.color, min(max(size, 0.0), 1.0)), "osD^vP"[digest % 6]
        text = VARIANTS.get(variant, f"{{}}, {variant}").format(style.text)
        return Style(text, color, line, marker)
    digest = zlib.crc32(name.encode())
    line = (_SOLID, _DASH, _DOT, _MIX)[digest // 7 % 4]
    return Style(name, _OTHERS[digest % len(_OTHERS)], line, "osD^vP"[digest // 28 % 6])


def name_of(method: str) -> str:
    """The name of a method in figures and reports.

    >>> name_of("rnd/gated"), name_of("printed/made gated")
    ('first-visit RND', 'first-visit MADE, as printed')
    """
    return style_of(method).text


def style() -> Any:
    """A context in which matplotlib draws in the style; every function here enters it. No text is below 8 points."""
    import matplotlib

    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8,
        "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "figure.titlesize": 10,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
        "axes.grid": True, "grid.color": "#E5E5E5", "grid.linewidth": 0.5, "axes.axisbelow": True,
        "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.4, "lines.markersize": 4,
        "legend.frameon": False, "legend.handlelength": 2.6, "image.cmap": "viridis",
        "figure.facecolor": "white", "savefig.facecolor": "white", "svg.hashsalt": "made",
    }  # fmt: skip
    return matplotlib.rc_context(settings)


def figure(
    rows: int = 1, columns: int = 1, *, width: float = PAGE, height: float = 2.4, **options: Any
) -> tuple["Figure", np.ndarray]:
    """An empty figure, `width` inches wide and `height` inches a row, and its axes [rows, columns].

    The options are those of `Figure.subplots`, such as sharey=True.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        fig = Figure(figsize=(width, height * rows), layout="constrained")
        FigureCanvasAgg(fig)
        return fig, fig.subplots(rows, columns, squeeze=False, **options)


def panels(
    titles: Collection[str], columns: int = 3, *, x: str = "", y: str = "", **options: Any
) -> tuple["Figure", list["Axes"]]:
    """An empty figure with a panel a title, at most `columns` side by side; the options are those of `figure`.

    Only the first panel of a row names the vertical axis.
    """
    count, columns = len(titles), min(columns, len(titles))
    fig, axes = figure(-(-count // columns), columns, **options)
    for i, (ax, text) in enumerate(zip(axes.flat, titles, strict=False)):
        title(ax, text, x=x, y="" if i % columns else y)
    for ax in axes.flat[count:]:
        ax.set_visible(False)
    return fig, list(axes.flat[:count])


def band(
    ax: "Axes", x: ArrayLike, middle: ArrayLike, low: ArrayLike, high: ArrayLike, look: Style, **options: Any
) -> None:
    """Draw a line and the area between two others, in the look of a method; the options are those of `Axes.plot`."""
    ax.plot(x, middle, **{"color": look.color, "linestyle": look.line, "label": look.text} | options)
    ax.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)


def interval_band(
    ax: "Axes", x: ArrayLike, values: np.ndarray, look: Style, statistic: str = "mean", rng: Any = None, **options: Any
) -> np.ndarray:
    """Draw a statistic over seeds of values [n_seeds, T] with its bootstrap interval; returns the statistic.

    The line breaks where a seed has no value, and one seed has no shade. The default generator has seed 0.
    """
    found, complete = np.full((3, values.shape[1]), np.nan), ~np.isnan(values).any(axis=0)
    if complete.any():
        found[:, complete] = interval(values[:, complete], statistic, rng or np.random.default_rng(0))[:3]
    middle, low, high = found
    band(ax, x, middle, low, high, look, **options)
    return middle


def range_band(ax: "Axes", x: ArrayLike, values: np.ndarray, look: Style, **options: Any) -> None:
    """Draw the mean over seeds, and shade from the lowest to the highest: for few seeds."""
    band(ax, x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), look, **options)


def curves(
    ax: "Axes",
    table: Table,
    labels: Sequence[str],
    metric: str,
    names: Mapping[str, str],
    rng: np.random.Generator | None = None,
) -> None:
    """Draw one curve a label: the interquartile mean over seeds, as `interval_band` does, with markers.

    `names` maps labels to the names of methods, which give color and legend.
    """
    rng = rng or np.random.default_rng(0)
    with style():
        for i, label in enumerate(labels):
            look = style_of(names.get(label, label))
            steps, values = table.curves(label, metric)
            every = max(1, len(steps) // 8)
            marks = {"marker": look.marker, "markevery": (every * i // len(labels), every)}  # staggered
            interval_band(ax, steps, values, look, "iqm", rng, **marks)
        ax.margins(x=0.01)


def bars(ax: "Axes", values: Mapping[str, ArrayLike | CensoredTimes], rng: np.random.Generator | None = None) -> None:
    """Draw a row for each method: every seed as a small dot, the estimate and its bootstrap interval.

    `values` maps names of methods to [n_seeds], or to `CensoredTimes`: the estimate is then the median, an interval
    without an upper end is cut at the last step, and an open triangle there stands for the censored seeds.
    """
    rng = rng or np.random.default_rng(0)
    with style():
        for row, (name, given) in enumerate(values.items()):
            look = style_of(name)
            if isinstance(given, CensoredTimes):
                found, seen, cut = given.median(rng), given.times, given.censored
            else:
                found, seen = interval(given, "iqm", rng), np.asarray(given)
                cut = np.zeros(len(seen), bool)
            above = row - 0.26 + 0.04 * (np.arange(len(seen)) % 5 - 2)  # spread, so that equal seeds show
            dots = {"color": look.color, "linestyle": "none", "markersize": 4}
            ax.plot(seen[~cut], above[~cut], marker=".", alpha=0.5, markeredgewidth=0, **dots)
            if cut.any():
                ax.plot(np.max(seen), row - 0.26, marker=">", fillstyle="none", **dots)
                beside = {"xycoords": ("axes fraction", "data"), "va": "center", "color": "#444444"}
                ax.annotate(f"{cut.sum()} of {len(cut)}\nnot reached", (1.02, row), **beside)
            ends = np.minimum([float(found.low), float(found.high)], np.max(seen))  # NaN draws nothing
            ax.plot(ends, [row, row], color=look.color, linewidth=2.2, solid_capstyle="butt")
            if np.isfinite(found.estimate):
                ax.plot(found.estimate, row, "o", color=look.color, markeredgecolor="white", markersize=6)
        ax.set_yticks(range(len(values)), [style_of(name).text for name in values])
        ax.set_ylim(len(values) - 0.5, -0.5)
        ax.grid(axis="y", visible=False)


def title(ax: "Axes", text: str = "", *, x: str = "", y: str = "") -> None:
    """Name an axes and its two directions, in the letters of the look."""
    with style():
        ax.set(title=text, xlabel=x, ylabel=y)


def legend(fig: "Figure", columns: int = 4) -> None:
    """One legend for all the axes of a figure, above them, each method once."""
    pairs = [ax.get_legend_handles_labels() for ax in fig.axes]
    once = {text: handle for handles, texts in pairs for handle, text in zip(handles, texts, strict=True)}
    with style():
        place = {"loc": "outside upper center", "ncols": min(columns, len(once) or 1)}
        fig.legend(list(once.values()), list(once), **place)


def caption(fig: "Figure", text: str, *, seeds: int | Sequence[int] | None = None, statistic: str = "iqm") -> str:
    """Write a caption under the figure that says what the lines and shades are; returns it.

    `seeds` is how many there are for each label; where labels differ, the several numbers.
    """
    parts = [text.strip()]
    if seeds is not None:
        counts = [seeds] if isinstance(seeds, int) else seeds
        what = {"iqm": "Interquartile mean"}.get(statistic, statistic.capitalize())
        spread = f"{what} over {n_seeds_text(counts)} with 95% bootstrap intervals."
        parts.append(spread if max(counts) > 1 else "One seed, so no interval.")
    with style():
        width = int(fig.get_figwidth() * 17.5)  # characters of 8 points to the inch
        lines = textwrap.wrap(words := " ".join(parts), width)
        fig.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8, color="#444444")
    return words


def log_axis(ax: "Axes", which: str = "x") -> None:
    """Make the "x" or "y" axis logarithmic, labelled at powers of ten, or between them if it has too few."""
    with style():
        ax.set(**{f"{which}scale": "log"})


def step_axis(ax: "Axes") -> None:
    """Label the x axis in thousands and millions of steps: 50k, 1.5M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def png(fig: "Figure", dpi: int = 200) -> bytes:
    """The figure as PNG; the same bytes for the same figure."""
    return _content(fig, format="png", dpi=dpi, metadata={"Software": None})


def save(fig: "Figure", path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write `path`.png, in few colors, and `path`.svg, each atomically and without a date; returns both paths."""
    folder, name = Path(path).parent, Path(path).name
    make_dir(folder, "--to")
    svg = _content(fig, format="svg", metadata={"Date": None})
    written = safe_files.write_atomic(folder / f"{name}.png", few_colors(png(fig)))
    return written, safe_files.write_atomic(folder / f"{name}.svg", svg)


def _content(fig: "Figure", **options: Any) -> bytes:
    with style():
        fig.savefig(buffer := io.BytesIO(), **options)
    return buffer.getvalue()


def _shade(color: str, depth: float) -> str:
    """The color mixed with white (depth 0) through itself (1/2) to half black (1)."""
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], float)
    light, dark = 0.35 * parts + 0.65 * 255, 0.45 * parts
    mixed = light + (parts - light) * 2 * depth if depth < 0.5 else parts + (dark - parts) * (2 * depth - 1)
    return "#" + "".join(f"{round(part):02X}" for part in mixed)


def few_colors(png: bytes) -> bytes:
    """The image with a palette of 256 colors, a third of the size; the same bytes for the same image.

    The commonest colors, which fill lines, bands and the cells of a map, stay exact; rarer ones, at the edges of lines
    and letters, become the nearest of the palette.
    """
    from PIL import Image

    with Image.open(io.BytesIO(png)) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    codes, inverse, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colors = palette = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], -1).astype(np.uint8)
    if len(colors) > PALETTE_SIZE:
        order = np.argsort(-counts, kind="stable")
        others = Image.fromarray(colors[order[EXACT:]][None]).quantize(PALETTE_SIZE - EXACT, dither=Image.Dither.NONE)
        rest = np.array(others.getpalette(), np.uint8).reshape(-1, 3)[: PALETTE_SIZE - EXACT]
        palette = np.concatenate([colors[order[:EXACT]], rest])
    x, y = colors.astype(np.float32), palette.astype(np.float32)
    nearest = np.argmin((y**2).sum(-1) - 2 * x @ y.T, -1).astype(np.uint8)
    reduced = Image.frombytes("P", pixels.shape[1::-1], nearest[inverse].tobytes())
    reduced.putpalette(palette.tobytes())
    reduced.save(buffer := io.BytesIO(), "PNG", optimize=True)
    return buffer.getvalue()
