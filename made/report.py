"""A report in one HTML file: figures, claims with verdicts, settings, results and provenance.

The file needs nothing else: figures are inside it, there is no script, and a policy in its head forbids the
browser to fetch anything. All text is escaped. It takes plain data and knows no experiment.
"""

import base64
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

_PNG = b"\x89PNG\r\n\x1a\n"
_DPI = 200  # of the figures; they are shown in their size on paper


class Section(NamedTuple):
    """One experiment of a report.

    `figures` holds (caption, PNG, text for those who cannot see it); `claims` dicts with the keys claim,
    name, where, holds (True, False, or None: this scale cannot tell), observed, scale, seeds and command;
    `tables` (title, header, rows); `settings` the description of the run of each label; `provenance` what
    `provenance.merged` returns.

    >>> "Fig. 3" in render([Section("lock", "Bidirectional lock", intro="Fig. 3 of the paper.")])
    True
    """

    name: str
    title: str
    intro: str = ""
    figures: Sequence[tuple[str, bytes, str]] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    tables: Sequence[tuple[str, Sequence[Any], Sequence[Sequence[Any]]]] = ()
    settings: Mapping[str, Mapping[str, Any]] = {}
    provenance: Mapping[str, Any] = {}


def render(sections: Sequence[Section], title: str = "made: results") -> str:
    """The report as HTML text: a summary of all verdicts, then the sections in the order given."""
    anchors = [f"s{i}-{re.sub(r'[^A-Za-z0-9]+', '-', s.name).strip('-').lower()}" for i, s in enumerate(sections)]
    body = [f"<h1>{escape(title)}</h1>", _summary(sections, anchors)]
    body += [_section(section, anchor) for section, anchor in zip(sections, anchors, strict=True)]
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(body))


def write(path: str | os.PathLike[str], sections: Sequence[Section], title: str = "made: results") -> Path:
    """Write the report, whole or not at all, and return its path."""
    target = Path(path)
    text = render(sections, title)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}-{os.getpid()}"
    try:
        temporary.write_text(text, "utf-8")
        return temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def verdict(holds: bool | None) -> tuple[str, str, str]:
    """The kind, the symbol and the words of a verdict: never by colour alone."""
    if holds is None:
        return "unknown", "?", "cannot tell at this scale"
    return ("yes", "✓", "holds") if holds else ("no", "✗", "does not hold")


def _holds(claim: Mapping[str, Any]) -> bool | None:
    return None if claim.get("holds") is None else bool(claim["holds"])


def _badge(holds: bool | None, count: int | None = None) -> str:
    kind, symbol, words = verdict(holds)
    number = "" if count is None else f"{count} "
    return f'<span class="verdict {kind}"><span aria-hidden="true">{symbol}</span> {number}{words}</span>'


def _summary(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    if not sections:
        return "<p>There are no results yet.</p>"
    items = []
    for section, anchor in zip(sections, anchors, strict=True):
        found = [verdict(_holds(claim)) for claim in section.claims]
        counts = [(holds, found.count(verdict(holds))) for holds in (True, False, None)]
        badges = " ".join(_badge(holds, count) for holds, count in counts if count) or "no claim checked"
        items.append(f'<li><a href="#{anchor}">{escape(section.title)}</a> <span>{badges}</span></li>')
    return f'<nav aria-label="Experiments"><ul class="summary">{"".join(items)}</ul></nav>'


def _section(section: Section, anchor: str) -> str:
    paragraphs = [f"<p>{escape(text.strip())}</p>" for text in section.intro.split("\n\n") if text.strip()]
    parts = [
        f'<h2 id="{anchor}">{escape(section.title)} <code>{escape(section.name)}</code></h2>',
        *paragraphs,
    ]
    parts += [_figure(*one) for one in section.figures]
    if section.claims:
        parts += ["<h3>Claims</h3>", '<ul class="claims">', *map(_claim, section.claims), "</ul>"]
    parts += [f"<h3>{escape(title)}</h3>{_table(header, rows)}" for title, header, rows in section.tables]
    if section.settings:
        parts.append(_details("Settings", _settings(section.settings)))
    if section.provenance:
        facts = [(_spoken(key), _value(value)) for key, value in section.provenance.items()]
        parts.append(_details("Provenance", _table(("", ""), facts)))
    return f"<section>{''.join(parts)}</section>"


def _figure(caption: str, png: bytes, alt: str) -> str:
    if not png.startswith(_PNG):
        raise ValueError(f"A figure must be PNG, but these {len(png)} bytes start with {png[:8]!r}: use plot.png(fig).")
    width, height = (int.from_bytes(png[at : at + 4], "big") * 96 // _DPI for at in (16, 20))
    source = f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
    image = f'<img src="{source}" width="{width}" height="{height}" alt="{escape(alt)}">'
    return f"<figure>{_wide(image)}<figcaption>{escape(caption)}</figcaption></figure>"


def _claim(claim: Mapping[str, Any]) -> str:
    facts = [
        ("Observed", claim.get("observed")),
        ("In the paper", claim.get("where")),
        ("Scale", claim.get("scale")),
    ]
    facts.append(("Seeds", claim.get("seeds")))
    rows = [f"<dt>{key}</dt><dd>{escape(_value(value))}</dd>" for key, value in facts if value not in (None, "")]
    if claim.get("command"):
        rows.append(f"<dt>Repeat</dt><dd><code>{escape(str(claim['command']))}</code></dd>")
    name = f" <code>{escape(str(claim['name']))}</code>" if claim.get("name") else ""
    text = escape(str(claim.get("claim", "")))
    return f"<li>{_badge(_holds(claim))}<p>{text}{name}</p><dl>{''.join(rows)}</dl></li>"


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """What all runs share, once; then for each label only what is its own."""
    flat = {label: dict(_flat(description)) for label, description in settings.items()}
    first = next(iter(flat.values()))
    shared = {path for path in first if all(path in one and one[path] == first[path] for one in flat.values())}
    common = _table(("shared by all runs", "value"), [(path, first[path]) for path in first if path in shared])
    own = [
        (label, "\n".join(f"{path} = {value}" for path, value in one.items() if path not in shared))
        for label, one in flat.items()
    ]
    return common + (_table(("run", "its own settings"), own) if any(text for _, text in own) else "")


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """A tree of dicts and lists as (dotted path, value) pairs; short lists of plain values stay whole."""
    if isinstance(value, Mapping) and value:
        return [pair for key, part in value.items() for pair in _flat(part, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list | tuple) and any(isinstance(part, Mapping | list | tuple) for part in value):
        return [pair for i, part in enumerate(value) for pair in _flat(part, f"{path}[{i}]")]
    return [(path or "value", _value(value))]


def _table(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(_value(cell))}</th>' for cell in header)
    top = f"<thead><tr>{head}</tr></thead>" if any(_value(cell) for cell in header) else ""
    lines = []
    for first, *rest in (row for row in rows if len(row)):
        cells = [f'<th scope="row">{escape(_value(first))}</th>', *(_cell(cell) for cell in rest)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return _wide(f"<table>{top}<tbody>{''.join(lines)}</tbody></table>")


def _cell(cell: Any) -> str:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        text = _value(cell)
        kind = ' class="long"' if len(text) > 40 else ""
        return f"<td{kind}>{escape(text)}</td>"
    return f'<td class="number">{cell if isinstance(cell, int) else format(cell, ".4g")}</td>'


def _wide(inside: str) -> str:
    """Something that may be wider than a small screen: it scrolls by itself, by keyboard too."""
    return f'<div class="scroll" tabindex="0">{inside}</div>'


def _details(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>{inside}</details>"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple | range):
        return ", ".join(map(_value, value))
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def _spoken(key: str) -> str:
    return {"wall_s": "wall time, seconds", "dirty": "uncommitted changes"}.get(key, key.replace("_", " "))


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root { --back: #fff; --ink: #1c1c1e; --soft: #5a5a60; --line: #d9d9de; --panel: #f6f6f8; --link: #0057a3;
  --yes: #00614a; --no: #a33a00; --unknown: #55555c; }
@media (prefers-color-scheme: dark) { :root { --back: #17181b; --ink: #e8e8ea; --soft: #a8a8b0;
  --line: #3a3b41; --panel: #202126; --link: #7cc4ff; --yes: #4fd1ab; --no: #ff9d66; --unknown: #b9b9c2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 3rem 0 .5rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
p { margin: .5rem 0; }
a { color: var(--link); }
code { font: .85em ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
h2 code, .claims p code { color: var(--soft); font-weight: normal; }
figure { margin: 1.25rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
figcaption { font-size: .875rem; color: var(--soft); margin-top: .5rem; }
.summary, .claims { list-style: none; margin: 0; padding: 0; }
.summary li { display: flex; flex-wrap: wrap; gap: .25rem 1rem; justify-content: space-between;
  padding: .4rem 0; border-bottom: 1px solid var(--line); }
.verdict { display: inline-block; font-size: .875rem; font-weight: 600; margin-right: .5rem; }
.yes { color: var(--yes); } .no { color: var(--no); } .unknown { color: var(--unknown); }
.claims li { background: var(--panel); border-radius: 6px; padding: .75rem 1rem; margin: .75rem 0; }
.claims p { margin: .25rem 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; font-size: .875rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; white-space: pre;
  border-bottom: 1px solid var(--line); }
td.long { white-space: pre-line; min-width: 14rem; }
thead th { color: var(--soft); font-weight: 600; } tbody th { font-weight: 500; }
td.number { text-align: right; }
details { margin: .75rem 0; } summary { cursor: pointer; font-weight: 600; }
@media (max-width: 30rem) { figure img { max-width: none; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .35rem; } }
"""
