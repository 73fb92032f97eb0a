"""Sections and agents of a page, small and made up, and the same with hostile words in every place."""

import io

import numpy as np
import pytest

from made.experiments import plots
from made.experiments.report import Figure, Section
from made.experiments.report.charts import Agent, line
from made.experiments.types import Effect

EVIL = '</script><script>window.caught=1</script><img src=x onerror="window.caught=1">\' onload="\u2028'
VERDICTS = {"yes": (True, 20), "no": (False, 20), "unknown": (None, 20), "unrun": (None, 0)}


def claim(number: int, kind: str, where: str = "Fig. 3, Sec. 4.1", **changes):
    holds, seeds = VERDICTS[kind]
    given = {"claim": number, "text": "MADE is faster.", "name": f"faster-{number}", "where": where, "holds": holds}
    unit = "return, MADE minus none"
    effects = [Effect("vi", 1.2, 1.0, 1.4, unit), Effect("q", 0.5, -0.1, 1.1, unit)] if seeds else []
    given |= {"scale": "small", "seeds": seeds, "effects": [one.to_dict() for one in effects], "observed": ""}
    return given | {"command": "made run lock --scale small"} | changes


def maps(word: str = "") -> dict:
    frames = [[float(8 * t + i) for i in range(8)] for t in range(3)]
    methods = [{"text": f"MADE{word}", "frames": frames}, {"text": "1/N", "frames": frames[::-1]}]
    forms = [{"text": f"as they do{word}", "methods": methods}, {"text": "plain", "methods": methods[:1]}]
    return {"rows": ["a", "b", "c", f"d{word}"], "columns": 2, "steps": [200, 400, 600], "seeds": 20, "forms": forms}


def curves(word: str = "") -> dict:
    frames, values = np.array([100_000, 200_000, 300_000]), np.array([[0, 0.5, 1], [0.1, 0.4, 0.9]])
    lines = [line("made", frames, np.array([1.0, 2.0, 3.0]), values)]
    lines.append(line("none", frames, np.array([5.0, 10.0, 20.0]), 0 * values, text=f"nothing{word}", shown=True))
    other = [line("rnd", frames, np.array([1.0, 2.0, 3.0]), values / 2, shown=False)]
    panels = [{"name": f"DoorKey{word}", "lines": lines}, {"name": "MultiRoom", "lines": other}]
    return {"y": "return", "note": f"A note{word}", "panels": panels}


@pytest.fixture(scope="session")
def png() -> bytes:
    fig, axes = plots.figure(width=2.0, height=1.0)
    axes[0, 0].plot([0, 1])
    return plots.png(fig)


@pytest.fixture(scope="session")
def gif() -> bytes:
    from PIL import Image

    held = io.BytesIO()
    first, *rest = (Image.new("RGB", (8, 8), (80 * i, 0, 0)) for i in range(3))
    first.save(held, "GIF", save_all=True, append_images=rest, duration=100, loop=0)
    return held.getvalue()


@pytest.fixture(scope="session")
def lock(png, tmp_path_factory) -> Section:
    (file := tmp_path_factory.mktemp("figures") / "lock.png").write_bytes(png)
    runs = {"vi/made": {"env": {"H": 20}, "bonus": {"kind": "MADE", "B": 100}}}
    runs["vi/none"] = {"env": {"H": 20}, "bonus": {"kind": "None"}}
    return Section(
        "lock",
        "Lock",
        "First `paragraph`.\n\nSecond paragraph.",
        [Figure(file, "The caption", "a line")],
        [claim(1, "yes"), claim(2, "no"), claim(3, "unknown", "Theorem 1", missing=["more seeds"])],
        [("Final return", ("method", "return"), [("MADE", 0.123456789), ("none", 3)])],
        runs,
        {"commit": "abc123", "dirty": False, "device": ["cpu", "H200"], "wall_s": 12.5},
        maps=maps(),
    )


@pytest.fixture(scope="session")
def grid() -> Section:
    return Section("grid", "Grid", claims=[claim(4, "unrun", "Sec. 5.1")], curves=curves())


@pytest.fixture(scope="session")
def agent(gif, png) -> Agent:
    drawn = curves()["panels"][0]["lines"][0]
    return Agent("DoorKey-made", "made train --env DoorKey", "DoorKey", "made", "two cores", drawn, (gif,), (png,))


@pytest.fixture(scope="session")
def hostile(lock, png, gif) -> tuple[Section, Agent]:
    effects = [Effect(EVIL, i, i - 1.0, i + 1.0, EVIL).to_dict() for i in range(9)]
    bad = claim(1, "yes", EVIL, text=EVIL, name=EVIL, effects=effects[:2], scale=EVIL)
    bad |= {"seeds": EVIL, "command": EVIL}
    long = claim(2, "no", EVIL, effects=effects, missing=[EVIL], note=EVIL)
    section = Section(
        EVIL,
        EVIL,
        f"`{EVIL}` {EVIL}",
        [Figure(lock.figures[0].file, EVIL, EVIL)],
        [bad, long],
        [(EVIL, (EVIL, EVIL), [(EVIL, EVIL), (EVIL, [EVIL])])],
        {EVIL: {EVIL: EVIL}, "other": {EVIL: {EVIL: [EVIL]}}},
        {EVIL: EVIL, "device": [EVIL]},
        maps(EVIL),
        curves(EVIL),
        EVIL,
    )
    drawn = {**curves()["panels"][0]["lines"][0], "text": EVIL}
    return section, Agent(EVIL, EVIL, EVIL, EVIL, EVIL, drawn, (gif,), (png,))
