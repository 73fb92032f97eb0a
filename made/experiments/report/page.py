"""The page: sections in, one HTML text out.

Figures and data are inside it. The policy in its head forbids the browser to fetch anything, and lets only the
page's own script run, told by its hash.
"""

import base64
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

from made.core import safe_files
from made.experiments.report import claims, curves, heatmaps, html_parts
from made.experiments.report.agents import Agent, shown
from made.experiments.report.model import SAID, Section, kind_of

TITLE = "MADE, claim by claim"
_SCRIPTS = ("page.js", "curves.js", "maps.js")
_LEAD = (
    "Every claim of “MADE: Exploration via Maximizing Deviation from Explored Regions” (NeurIPS 2021), and what "
    "recorded runs say of it. Each verdict is computed from the runs by a rule in the code; intervals are 95% "
    "bootstrap intervals over seeds."
)


def render(sections: Sequence[Section], title: str = TITLE, agents: Sequence[Agent] = ()) -> str:
    """The page as HTML text: all verdicts, then the sections in the order given, then the agents."""
    anchors = [html_parts.anchor(f"s{i}", section.name) for i, section in enumerate(sections)]
    body = [_overview(sections)]
    body += [_section(i, one, anchor) for i, (one, anchor) in enumerate(zip(sections, anchors, strict=True))]
    if agents:
        intro = "<p>Runs of <code>made train</code>: a video of one episode, where it goes, and how it learned.</p>"
        body.append(f'<section id="agents"><h2>Agents at work</h2>{intro}{shown(agents, "agents-curves")}</section>')
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    return _PAGE.format(
        title=escape(title),
        style=_asset("style.css"),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        lead=_LEAD,
        tally=claims.tally(sections) if sections else "",
        contents=_contents(sections, anchors, bool(agents)),
        body="\n".join(body),
    )


def write(
    path: str | os.PathLike[str], sections: Sequence[Section], title: str = TITLE, agents: Sequence[Agent] = ()
) -> Path:
    """Write the page, whole or not at all, and return its path."""
    target = Path(path)
    text = render(sections, title, agents)
    target.parent.mkdir(parents=True, exist_ok=True)
    return safe_files.write_atomic(target, text)


@cache
def _asset(name: str) -> str:
    return (resources.files("made.experiments.report") / "assets" / name).read_text("utf-8")


def _overview(sections: Sequence[Section]) -> str:
    if not sections:
        return "<p>There are no results yet.</p>"
    told = claims.overview(sections) if any(section.claims for section in sections) else "<p>No claim was checked.</p>"
    return f'<section id="claims"><h2>The claims</h2>{told}</section>'


def _contents(sections: Sequence[Section], anchors: Sequence[str], agents: bool) -> str:
    if not sections:
        return ""
    items = ['<li><a href="#claims">The claims</a></li>']
    for section, anchor in zip(sections, anchors, strict=True):
        kinds = [kind_of(claim) for claim in section.claims]
        signs = "".join(_sign(kind, kinds.count(kind)) for kind in SAID if kind in kinds)
        signs = signs or '<span class="unseen">no claim checked</span>'
        items.append(f'<li><a href="#{anchor}">{escape(section.title)}</a> <span class="signs">{signs}</span></li>')
    items += ['<li><a href="#agents">Agents at work</a></li>'] if agents else []
    return (
        f'<nav aria-label="Contents"><details open><summary>Contents</summary><ol>{"".join(items)}</ol></details></nav>'
    )


def _sign(kind: str, count: int) -> str:
    symbol, text = SAID[kind]
    spoken = f'<span class="unseen">{count} {text}</span>'
    return f'<span class="{kind}"><span aria-hidden="true">{symbol}{count}</span>{spoken}</span>'


def _section(place: int, section: Section, anchor: str) -> str:
    parts = [f'<h2 id="{anchor}">{escape(section.title)} <code>{escape(section.name)}</code></h2>']
    if section.earlier:
        parts.append(
            f'<p class="earlier">From {escape(section.earlier)}; the given folders do not hold these runs in full.</p>'
        )
    parts.append(html_parts.prose(section.intro))
    parts += [heatmaps.controls(section.maps, f"maps-{place}")] if section.maps else []
    parts += [curves.controls(section.curves, f"curves-{place}")] if section.curves else []
    parts += [html_parts.figure(*one) for one in section.figures]
    if section.claims:
        each = [claims.full(claim, place, i) for i, claim in enumerate(section.claims)]
        parts.append(f'<h3>Claims</h3><ul class="claims">{"".join(each)}</ul>')
    for name, header, rows in section.tables:
        parts.append(html_parts.details(name, html_parts.table(header, rows, name)))
    parts += [html_parts.details("Settings", html_parts.settings(section.settings))] if section.settings else []
    parts += [html_parts.details("Provenance", html_parts.provenance(section.provenance))] if section.provenance else []
    return f'<section class="experiment">{"".join(parts)}</section>'


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{hash}'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the claims</a>
<header>
<div class="bar"><h1>{title}</h1>
<fieldset class="switch" id="theme" hidden><legend class="unseen">Colours</legend>
<label><input type="radio" name="theme" value="" checked><span>auto</span></label>
<label><input type="radio" name="theme" value="light"><span>light</span></label>
<label><input type="radio" name="theme" value="dark"><span>dark</span></label></fieldset></div>
<p class="lead">{lead}</p>
{tally}
</header>
<div class="columns">
{contents}
<main id="main">
{body}
</main>
</div>
<footer><p>Written by <code>made report</code> from recorded runs. “Cannot tell” means that the interval contains the
line to be crossed, or that there are fewer than five seeds; “not recorded” that nobody has run it here
yet.</p></footer>
<script>{script}</script>
</body>
</html>
"""
