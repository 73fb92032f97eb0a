"""Pictures: the lines are the estimates, a method has one look, files are the same each time."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from made.experiments import plots
from made.experiments.paper import lock_probes
from made.experiments.statistics import CensoredTimes, interval, iqm
from made.experiments.store.table import Record, Table

STEPS = np.arange(20) * 100


@pytest.fixture(scope="module")
def table() -> Table:
    draw = np.random.default_rng(0)
    runs = []
    for label in ("vi/made", "vi/hoeffding"):
        for seed in range(6):
            gaps = np.where(STEPS < 500 if seed == 0 else False, np.nan, draw.normal(size=20))
            runs.append(Record(label, seed, {"step": STEPS, "return": draw.normal(size=20), "gaps": gaps}))
    return Table([*runs, Record("vi/none", 0, {"step": STEPS, "return": np.ones(20)})])


NAMES = {"vi/made": "made", "vi/hoeffding": "hoeffding", "vi/none": "none"}


def test_panels_have_titles_and_only_the_first_of_a_row_names_the_vertical_axis():
    fig, axes = plots.panels(["a", "b", "c"], 2, x="steps", y="return")
    assert [(ax.get_title(), ax.get_xlabel()) for ax in axes] == [("a", "steps"), ("b", "steps"), ("c", "steps")]
    assert [ax.get_ylabel() for ax in axes] == ["return", "", "return"]
    assert [ax.get_visible() for ax in fig.axes] == [True, True, True, False]


def drawn(table: Table):
    fig, axes = plots.figure(1, 2)
    plots.curves(axes[0, 0], table, ["vi/made", "vi/hoeffding"], "return", NAMES, rng=np.random.default_rng(1))
    plots.title(axes[0, 0], "Lock", x="steps", y="return")
    plots.step_axis(axes[0, 0])
    plots.bars(axes[0, 1], {"made": table.final("vi/made", "return")}, rng=np.random.default_rng(1))
    plots.legend(fig)
    plots.caption(fig, "An example.", seeds=6)
    return fig, axes


def test_curves_are_the_statistic_and_its_interval(table):
    _, axes = drawn(table)
    line = axes[0, 0].lines[0]
    _, values = table.curves("vi/made", "return")
    np.testing.assert_allclose(line.get_ydata(), iqm(values, axis=0))
    np.testing.assert_array_equal(line.get_xdata(), STEPS)
    assert line.get_color() == plots.COLORS["made"].color and line.get_label() == "MADE"
    expected = interval(values, "iqm", np.random.default_rng(1))
    shade = axes[0, 0].collections[0].get_paths()[0].get_extents()
    assert shade.ymin == pytest.approx(expected.low.min()) and shade.ymax == pytest.approx(expected.high.max())


def test_a_line_breaks_where_a_seed_has_no_value(table):
    _, axes = plots.figure()
    plots.curves(axes[0, 0], table, ["vi/made"], "gaps", NAMES)
    y = axes[0, 0].lines[0].get_ydata()
    assert np.isnan(y[:5]).all() and not np.isnan(y[5:]).any()


def test_one_seed_has_a_line_but_no_shade(table):
    fig, axes = plots.figure()
    plots.curves(axes[0, 0], table, ["vi/none"], "return", NAMES)
    assert not np.isnan(axes[0, 0].lines[0].get_ydata()).any()
    assert not any(len(path.vertices) for path in axes[0, 0].collections[0].get_paths())
    plots.png(fig)


def test_bars_show_estimate_interval_and_every_seed(table):
    _, axes = drawn(table)
    values = table.final("vi/made", "return")
    dots, bar, point = axes[0, 1].lines
    found = interval(values, "iqm", np.random.default_rng(1))
    np.testing.assert_array_equal(np.sort(dots.get_xdata()), np.sort(values))
    assert tuple(bar.get_xdata()) == (found.low, found.high)
    assert point.get_xdata()[0] == found.estimate
    assert [label.get_text() for label in axes[0, 1].get_yticklabels()] == ["MADE"]


def test_bars_say_what_was_not_reached():
    few = CensoredTimes(np.array([10, 50, 50, 50]), np.array([False, True, True, True]))
    fig, axes = plots.figure()
    plots.bars(axes[0, 0], {"made": few, "none": np.array([1.0, 2.0])})
    texts = [text.get_text() for text in axes[0, 0].texts]
    assert texts == ["3 of 4\nnot reached"]
    xs = [x for line in axes[0, 0].lines for x in line.get_xdata()]
    assert np.isfinite(xs).all() and max(xs) == 50
    plots.png(fig)


def test_heat_maps_share_a_scale_and_leave_zero_and_nan_grey():
    matrices = [np.array([[0.0, 1.0], [5.0, 2.0]]), np.array([[3.0, 100.0], [np.nan, 4.0]])]
    fig, axes = plots.figure(1, 2)
    images = [lock_probes.heatmap(ax, m, (1.0, 100.0)) for ax, m in zip(axes[0], matrices, strict=True)]
    assert {image.get_clim() for image in images} == {(1.0, 100.0)}
    masks = [image.get_array().mask.tolist() for image in images]
    assert masks == [[[True, False], [False, False]], [[False, False], [True, False]]]
    plots.png(fig)


def test_bands_show_the_interval_or_the_range_over_seeds():
    _, axes = plots.figure(1, 2)
    values, look = np.array([[0.0, 1.0], [2.0, 5.0]]), plots.style_of("made")
    found = plots.interval_band(axes[0, 0], [1, 2], values, look)
    plots.range_band(axes[0, 1], [1, 2], values, look, marker="s")
    for ax in axes[0]:
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1, 3])
    np.testing.assert_array_equal(found, [1, 3])
    assert axes[0, 1].lines[0].get_marker() == "s"
    assert axes[0, 1].collections[0].get_datalim(axes[0, 1].transData).extents.tolist() == [1, 0, 2, 5]


def test_a_method_has_one_look_and_no_other_has_it():
    looks = {(s.color, str(s.line), s.marker): name for name, s in plots.COLORS.items()}
    twins = {name for name in plots.COLORS if name not in looks.values()}
    assert twins <= {"made", "pg+made"}  # MADE is MADE, with or without policy gradient
    for together in (
        ["greedy", "epsilon-greedy", "hoeffding", "bernstein", "inverse", "made", "made-geometric"],
        ["pg", "pg+e", "pg+re", "pg+made"],
        ["none", "rnd", "icm", "ride", "noveld", "amigo", "made"],
        ["rad", "re3", "made", "dreamer"],
    ):
        assert len({plots.COLORS[name].color for name in together}) == len(together)


def test_variants_are_shades_and_unknown_names_are_stable():
    sizes = [plots.style_of(f"made/B={b}").color for b in (100, 1000, 10000, 100000)]
    brightness = [sum(int(color[i : i + 2], 16) for i in (1, 3, 5)) for color in sizes]
    assert brightness == sorted(brightness, reverse=True) and len(set(sizes)) == 4
    assert plots.style_of("made/B=100").text == "MADE, B=100"
    unknown = plots.style_of("disagreement")
    assert unknown == plots.style_of("disagreement") and unknown.text == "disagreement"
    assert unknown.color not in {style.color for style in plots.COLORS.values()}
    assert plots.style_of("made/").color.startswith("#") and plots.style_of("").color.startswith("#")


def test_letters_are_legible(table):
    from matplotlib.text import Text

    fig, _ = drawn(table)
    plots.png(fig)
    sizes = [text.get_fontsize() for text in fig.findobj(Text) if text.get_text().strip()]
    assert len(sizes) > 10 and min(sizes) >= 8 and max(sizes) <= 10


def test_captions_say_what_is_drawn():
    fig, _ = plots.figure()
    many = plots.caption(fig, "Returns.", seeds=20)
    assert many == "Returns. Interquartile mean over 20 seeds with 95% bootstrap intervals."
    assert "Median over 5 to 20 seeds" in plots.caption(fig, "", seeds=[20, 5, 7], statistic="median")
    assert "One seed, so no interval." in plots.caption(fig, "", seeds=1)


def test_a_legend_names_each_method_once(table):
    fig, axes = plots.figure(1, 2)
    for ax in axes[0]:
        plots.curves(ax, table, ["vi/made", "vi/hoeffding"], "return", NAMES)
    plots.legend(fig)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["MADE", "Hoeffding"]


def test_log_and_step_axes():
    fig, axes = plots.figure()
    ax = axes[0, 0]
    ax.plot([0, 2e6], [1, 1000])
    ax.set_xlim(0, 2e6)
    plots.step_axis(ax)
    plots.log_axis(ax, "y")
    plots.png(fig)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["0", "500k", "1M", "1.5M", "2M"]
    assert ax.get_yscale() == "log" and ax.get_xscale() == "linear"
    plots.log_axis(ax)
    assert ax.get_xscale() == "log"


def test_files_are_the_same_each_time_and_undated(table, tmp_path):
    paths = [plots.save(drawn(table)[0], tmp_path / name / "lock.v1") for name in ("a", "b")]
    assert [p.name for p in paths[0]] == ["lock.v1.png", "lock.v1.svg"]
    for one, two in zip(*paths, strict=True):
        assert one.read_bytes() == two.read_bytes() and len(one.read_bytes()) > 5000
    svg = paths[0][1].read_text()
    assert "<dc:date>" not in svg and "tEXt" not in paths[0][0].read_bytes().decode("latin-1")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["lock.v1.png", "lock.v1.svg"]


def test_matplotlib_is_imported_late_and_its_global_state_left_alone():
    code = """
import sys
import numpy as np
from made.experiments import plots
from made.experiments.paper import lock_probes
assert "matplotlib" not in sys.modules, "imported with the module"
import matplotlib
values = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if not k.startswith("backend")}
before = values()
fig, axes = plots.figure()
plots.bars(axes[0, 0], {"made": np.arange(3.0)})
plots.png(fig)
assert values() == before, "settings changed"
assert "matplotlib.pyplot" not in sys.modules, "pyplot imported"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def as_png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def pixels_of(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_a_picture_of_few_colors_is_not_changed():
    few = np.random.default_rng(0).choice(np.array([[0, 0, 0], [255, 255, 255], [213, 94, 0]], np.uint8), (40, 60))
    np.testing.assert_array_equal(pixels_of(plots.few_colors(as_png(few))), few)


def test_the_commonest_colors_stay_and_the_others_become_near_ones_in_less_room():
    x = np.broadcast_to(np.arange(256, dtype=np.uint8), (128, 256))
    common = np.stack([x // 4 * 4, 255 - x // 4 * 4, x // 64 * 40], -1).astype(np.uint8)  # 64 stripes
    noise = np.random.default_rng(1).integers(0, 40, (16, 256, 3), np.uint8)
    many = np.concatenate([common, noise])
    less = plots.few_colors(as_png(many))
    found = pixels_of(less)
    assert less == plots.few_colors(as_png(many)) and len(less) < len(as_png(many))
    np.testing.assert_array_equal(found[:128], many[:128])
    assert len(np.unique(found.reshape(-1, 3), axis=0)) <= 256
    assert 0 < np.abs(found - many)[128:].mean() < 8
