"""The page, one HTML file that holds every claim, figure, curve, map and video, and the results as Markdown.

`assets` has the templates, the style and the scripts. The templates escape every value. The policy in the head of the
page forbids the browser to fetch anything and to run another script than the page's own, which its hash names.
"""

import base64
import hashlib
import io
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from made.core import safe_files
from made.experiments.report import SAID, SEVERAL, Section, charts, effects_of, kind_of
from made.experiments.types import Effect

SENTENCES: Mapping[int, tuple[str, str]] = {  # by claim, the most important first: if it holds, and if it does not
    33: (
        "On MiniGrid the density of MADE matters: with the same first-visit mask, RND needs more frames.",
        "On MiniGrid the first-visit mask matters more than the density of MADE: with the mask, RND and even a "
        "constant bonus come close.",
    ),
    35: (
        "The VAE released with the paper ranks recent experience as true counts do.",
        "The VAE released with the paper is not a density of recent experience.",
    ),
}
PARTS = {  # as the page's filter names them, in the paper's order
    "1": "1 Introduction",
    "3": "3 The objective and its theory",
    "4.1": "4.1 Bidirectional lock",
    "4.2": "4.2 Chain MDP",
    "5": "5 Deep rewards",
    "5.1": "5.1 MiniGrid",
    "5.2": "5.2 DeepMind Control",
    "5.3": "5.3 Dreamer",
    "6": "6 Related work",
    "": "elsewhere",
}
_THEORY = ("Eq", "Proposition", "Theorem", "Remark")
_SCRIPTS = ("page.js", "curves.js", "maps.js")
_DPI = 200  # of the figures, which the page shows in their size on paper
_COLORS = 64  # of an image in the page
_PAPER = 0.6  # part of white pixels from which on a figure is a drawing, which may be inverted in the dark


def render(sections: Sequence[Section], agents: Sequence[charts.Agent] = ()) -> str:
    """The page as HTML text: findings, all verdicts, the sections in the order given, then the agents."""
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    page = {"style": _asset("style.css"), "script": script, "script_hash": digest}
    cards = [agent._asdict() | {"points": _points(agent.returns)} for agent in agents]
    content = page | _content(sections) | {"agents": cards, "agent_curves": charts.agent_curves(agents)}
    return _environment().get_template("page.html.j2").render(content)


def write(path: Path, sections: Sequence[Section], agents: Sequence[charts.Agent] = ()) -> Path:
    """Write the page atomically and return its path."""
    text = render(sections, agents)
    path.parent.mkdir(parents=True, exist_ok=True)
    return safe_files.write_atomic(path, text)


def markdown(sections: Sequence[Section], page: Path) -> str:
    """The results as a Markdown page at that path, from which the figures are linked."""
    return _environment().get_template("results.md.j2").render(_content(sections), folder=page.parent)


def _content(sections: Sequence[Section]) -> dict[str, Any]:
    """What both templates show."""
    views = [_section(section) for section in sections]
    claims = sorted((claim for view in views for claim in view["claims"]), key=lambda claim: claim["claim"])
    parts = {name: text for name, text in PARTS.items() if name in {claim["part"] for claim in claims}}
    counts = {"claims": claims, "counts": _counts(claims), "parts": parts}
    return {"sections": views, "findings": findings(sections), **counts}


def findings(sections: Sequence[Section], most: int = 3) -> list[dict[str, Any]]:
    """What matters most of the decided claims: a sentence for each, with the range of its effects.

    After those of `SENTENCES` come claims that do not hold, then claims that do.
    """
    claims = [claim for section in sections for claim in section.claims if claim["holds"] is not None]
    order = list(SENTENCES)
    claims.sort(key=lambda one: (order.index(one["claim"]) if one["claim"] in order else 99, bool(one["holds"])))
    found = []
    for claim in claims[:most]:
        plain = (claim["text"], f"The paper's claim does not hold here: {claim['text']}")
        text = SENTENCES.get(claim["claim"], plain)[not claim["holds"]]
        found.append({"claim": claim["claim"], "text": text, "evidence": _evidence(claim)})
    return found


def _evidence(claim: Mapping[str, Any]) -> list[str]:
    """For each unit with several effects, their range, or both of two."""
    lines, effects = [], effects_of(claim)
    for unit in dict.fromkeys(one.unit for one in effects):
        same = [one for one in effects if one.unit == unit]
        text = "; ".join(f"{one.name} {one.text}".strip() for one in same)
        if len(same) > 2:
            low, high = (find(one.value for one in same) for find in (min, max))
            text = f"{low:.2g} to {high:.2g} ({len(same)} comparisons, {claim['seeds']} seeds)"
        if len(same) > 1 or len(effects) == 1:
            lines.append(f"{unit}: {text}" if unit else text)
    return lines[:2]


def paper_section(where: str) -> str:
    """The part that a reference such as "Fig. 3, Sec. 4.1" is in.

    >>> [paper_section(x) for x in ("Fig. 3, Sec. 4.1", "Theorem 1", "Fig. 1", "Sec. 3.2, App. A", "a letter")]
    ['4.1', '3', '1', '3', '']
    """
    found = re.search(r"Sec\. (\d+)(\.\d+)?", where)
    names = (found[0][5:], found[1]) if found else ("3",) if where.startswith(_THEORY) else ("1",) * (where == "Fig. 1")
    return next((name for name in names if name in PARTS), "")


@cache
def _asset(name: str) -> str:
    return (resources.files("made.experiments.report") / "assets" / name).read_text("utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    found = Environment(
        loader=FunctionLoader(_asset),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    found.globals |= {"said": SAID, "several": SEVERAL, "relpath": os.path.relpath}
    found.filters |= {"words": words, "slug": slug, "image": image, "video": video}
    return found


def words(value: Any) -> str:
    """A value as plain text: lists with commas, None and truth values as words, floats in four digits."""
    if isinstance(value, list | tuple | range):
        return ", ".join(map(words, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return format(value, ".4g") if isinstance(value, float) else str(value)


def slug(name: str) -> str:
    """A name as part of an address within the page."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _source(content: bytes, kind: str) -> str:
    """An image as its own address."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _smaller(webp: bytes, given: bytes, kind: str) -> str:
    return _source(webp, "webp") if len(webp) < len(given) else _source(given, kind)


def image(png: bytes) -> dict[str, Any]:
    """A figure or map as the address of an image with a small palette, and its size in the pixels of the page.

    A drawing is lines on white, not a map or a video frame: the page inverts it in the dark.
    """
    opened = _opened(png)
    if opened.format != "PNG":
        raise ValueError(f"A figure must be PNG, not {opened.format}: use plots.png(fig).")
    opened.convert("RGB").quantize(_COLORS, dither=0).convert("RGB").save(
        held := io.BytesIO(), "WEBP", lossless=True, quality=80
    )
    width, height = (pixels * 96 // _DPI for pixels in opened.size)
    drawing = bool((np.asarray(opened.convert("L")) > 250).mean() > _PAPER)
    return {"src": _smaller(held.getvalue(), png, "png"), "width": width, "height": height, "drawing": drawing}


def video(gif: bytes) -> dict[str, str]:
    """The addresses of a video and of its first frame."""
    opened, frames, durations = _opened(gif), [], []
    for i in range(opened.n_frames):
        opened.seek(i)
        frames.append(opened.convert("RGB"))
        durations.append(opened.info.get("duration", 100))
    frames[0].save(still := io.BytesIO(), "WEBP", quality=80)
    options = {"save_all": True, "append_images": frames[1:], "duration": durations, "loop": 0, "quality": 80}
    frames[0].save(moving := io.BytesIO(), "WEBP", **options)
    return {"still": _source(still.getvalue(), "webp"), "moving": _smaller(moving.getvalue(), gif, "gif")}


def _opened(content: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(content))


def _counts(claims: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many claims have each kind of verdict, in the order of `SAID`, without those that no claim has."""
    counts = Counter(claim["kind"] for claim in claims)
    return {kind: counts[kind] for kind in SAID if counts[kind]}


def _section(section: Section) -> dict[str, Any]:
    """What the templates show of a section. It is `open` where no claim of several could be decided."""
    claims = []
    for claim in section.claims:
        effects = effects_of(claim)
        units = dict.fromkeys(one.unit for one in effects)
        groups = [_group([one for one in effects if one.unit == unit]) for unit in units]
        text, where = str(claim.get("text", "")), str(claim.get("where", ""))
        about = {"kind": kind_of(claim), "part": paper_section(where), "groups": groups, "effects": effects}
        claims.append({"missing": (), "note": "", **claim, **about, "text": text, "where": where})
    undecided = bool(claims) and all(claim["kind"] in ("unknown", "unrun") for claim in claims)
    common, own = _settings(section.settings) if section.settings else ((), ())
    names = {"wall_s": "wall-clock, seconds", "dirty": "uncommitted changes"}
    facts = [(names.get(key, key.replace("_", " ")), value) for key, value in section.provenance.items()]
    facts += [("copied from", section.earlier)] if section.earlier else []
    about = {"claims": claims, "counts": _counts(claims), "open": undecided, "common": common, "own": own}
    return {**section._asdict(), **about, "facts": facts}


def _group(effects: Sequence[Effect]) -> dict[str, Any]:
    """Effects of one unit, and where each stands on a common scale from 0 to 100 that has the value of no effect."""
    ends = [x for e in effects for x in (e.null, e.value, e.low, e.high) if math.isfinite(x)]
    room = 0.04 * (max(ends, default=0.0) - min(ends, default=0.0) or 1.0)
    low, high = min(ends, default=0.0) - room, max(ends, default=0.0) + room

    def at(x: float) -> float:
        return round(100 * min(max((x - low) / (high - low), 0.0), 1.0), 2)

    rows = []
    for e in effects:
        drawn = [at(x) for x in (e.null, e.low, e.value, e.high)] if e.low == e.low else ()
        rows.append({"name": e.name, "text": e.text, "at": drawn})
    return {"unit": effects[0].unit, "null": effects[0].null, "rows": rows, "drawn": any(row["at"] for row in rows)}


def _settings(given: Mapping[str, Mapping[str, Any]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The value of each setting that most runs have, and for each run those of its own that differ."""
    flat = {label: dict(_flat(one)) for label, one in given.items()}
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for path, value in (pair for one in flat.values() for pair in one.items()):
        values[path][value] += 1
    common = {path: counts.most_common(1)[0][0] for path, counts in values.items()}
    differ = {label: [f"{path} = {x}" for path, x in one.items() if x != common[path]] for label, one in flat.items()}
    return list(common.items()), [(label, "\n".join(lines)) for label, lines in differ.items() if lines]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """A tree of dicts and lists as (dotted path, value) pairs; short lists of plain values stay whole."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(part, Mapping | list | tuple) for part in value):
        for i, part in enumerate(value):
            yield from _flat(part, f"{path}[{i}]")
    else:
        yield path or "value", words(value)


def _points(returns: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Pairs of returns as points from 0 to 1, and the two ends of their common axis; {} without any."""
    if not returns:
        return {}
    values = np.asarray(returns, float)
    low, high = float(values.min()), float(values.max())
    room = 0.05 * max(high - low, 1e-6)
    scaled = (values - low + room) / (high - low + 2 * room)
    return {"at": scaled.round(4).tolist(), "low": f"{low:.2g}", "high": f"{high:.2g}"}
