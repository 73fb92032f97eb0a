"""The claims: a table of all of them with its filters, and each one in full beside its figure."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from made.experiments.report import effects, html_parts
from made.experiments.report.model import PARTS, SAID, Section, kind_of, numbered, paper_section

_MANY = 6  # findings beyond which their list has to be opened
_GIST = 90  # characters of a sentence that the table of all claims has room for
_LONG = 260  # characters from which on words that repeat a drawn table are folded away


def each(sections: Sequence[Section]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every claim with its address in the page, in the order of their numbers."""
    found = [(_address(i, j, claim), claim) for i, s in enumerate(sections) for j, claim in enumerate(s.claims)]
    yield from sorted(found, key=lambda pair: numbered(pair[1])[0] or 10**6)


def _address(section: int, place: int, claim: Mapping[str, Any]) -> str:
    return f"claim-{section}-{place}"


def counts(sections: Sequence[Section]) -> dict[str, int]:
    """How many claims have each kind of verdict, in the order of `SAID`."""
    kinds = [kind_of(claim) for section in sections for claim in section.claims]
    return {kind: kinds.count(kind) for kind in SAID}


def tally(sections: Sequence[Section]) -> str:
    """All verdicts as one bar, and in words."""
    found = {kind: n for kind, n in counts(sections).items() if n}
    shares = "".join(f'<span class="{kind}" style="flex-grow:{n}"></span>' for kind, n in found.items())
    items = "".join(f"<li>{html_parts.badge(kind, n)}</li>" for kind, n in found.items())
    return f'<div class="tally"><div class="shares" aria-hidden="true">{shares}</div><ul>{items}</ul></div>'


def overview(sections: Sequence[Section]) -> str:
    """The filters and the table of all claims; without scripts the filters stay hidden and all rows are shown."""
    rows = "".join(_line(address, claim) for address, claim in each(sections))
    heads = ("claim", "verdict", "observed [95% interval]", "seeds", "scale")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    caption = '<caption class="unseen">Every claim with its verdict</caption>'
    number = '<th scope="col"><abbr title="number">no.</abbr></th>'
    return (
        f'{_filters(sections)}<table class="overview">{caption}<thead><tr>{number}{head}</tr></thead>'
        f'<tbody>{rows}</tbody></table><p class="nothing" hidden>No claim passes these filters.</p>'
    )


def _filters(sections: Sequence[Section]) -> str:
    have = counts(sections)
    boxes = "".join(
        f'<label class="chip {kind}"><input type="checkbox" name="verdict" value="{kind}" checked>'
        f'<span aria-hidden="true">{symbol}</span> {text} <span class="count">{have[kind]}</span></label>'
        for kind, (symbol, text) in SAID.items()
        if have[kind]
    )
    used = {paper_section(str(claim.get("where", ""))) for _, claim in each(sections)}
    options = "".join(f'<option value="{name or "-"}">{text}</option>' for name, text in PARTS.items() if name in used)
    return (
        '<form class="filters" id="filters" hidden aria-label="Filter the claims">'
        f"<fieldset><legend>Verdict</legend>{boxes}</fieldset>"
        '<div class="row"><label for="part">Section of the paper</label>'
        f'<select id="part" name="part"><option value="">all</option>{options}</select>'
        '<button type="reset">Show all</button><output id="shown" aria-live="polite"></output></div></form>'
    )


def _marks(claim: Mapping[str, Any]) -> str:
    """What the filters look at."""
    place = paper_section(str(claim.get("where", ""))) or "-"
    return f'data-verdict="{kind_of(claim)}" data-part="{place}"'


def _line(address: str, claim: Mapping[str, Any]) -> str:
    number, text = numbered(claim)
    where = escape(str(claim.get("where", "")))
    seen = effects.with_interval(effects.of(claim))
    recorded = kind_of(claim) != "unrun"
    effect = f"{seen[0].name} {seen[0].text}" if seen else _gist(claim) if recorded else ""
    more = f' <span class="soft">and {len(seen) - 1} more</span>' if len(seen) > 1 else ""
    cells = (claim.get("seeds"), claim.get("scale")) if recorded else ("", "")
    return (
        f'<tr class="claim" {_marks(claim)}><td class="nr">{"" if number is None else number}</td>'
        f'<th scope="row"><a href="#{address}">{escape(text)}</a> <span class="soft">{where}</span></th>'
        f"<td>{html_parts.badge(kind_of(claim))}</td>"
        f'<td class="effect">{escape(effect)}{more}</td>'
        f'<td data-head="seeds">{escape(html_parts.words(cells[0]))}</td>'
        f'<td data-head="scale">{escape(html_parts.words(cells[1]))}</td></tr>'
    )


def _gist(claim: Mapping[str, Any]) -> str:
    """The first number of a claim without an interval."""
    first = next((f"{one.unit}: {one.name} {one.text}" for one in effects.of(claim)), str(claim.get("observed", "")))
    return textwrap.shorten(first, _GIST, placeholder="…")


def full(claim: Mapping[str, Any], section: int, place: int) -> str:
    """One claim with everything that is known of it."""
    number, text = numbered(claim)
    called = f'<span class="nr">Claim {number}</span> ' if number is not None else ""
    recorded = kind_of(claim) != "unrun"
    facts = [("In the paper", claim.get("where")), ("Name", claim.get("name"))]
    facts += [("Scale", claim.get("scale")), ("Seeds", claim.get("seeds"))] if recorded else []
    listed = [
        f"<div><dt>{key}</dt><dd>{escape(html_parts.words(x))}</dd></div>" for key, x in facts if x not in (None, "")
    ]
    command = f"<code>{escape(str(claim['command']))}</code>" if claim.get("command") else ""
    if command:
        copy = '<button type="button" class="copy" hidden>Copy<span class="unseen"> the command</span></button>'
        command = f'<p class="repeat"><span class="soft">{"Repeat" if recorded else "Run"}</span> {command} {copy}</p>'
    known = recorded or claim.get("effects") or claim.get("missing")
    seen = _observed(claim) if known else ""  # the badge and the command say that nothing is recorded
    return (
        f'<li class="claim" id="{_address(section, place, claim)}" {_marks(claim)}>{html_parts.badge(kind_of(claim))}'
        f"<h4>{called}{escape(text)}</h4>{seen}"
        f'<dl class="facts">{"".join(listed)}</dl>{command}</li>'
    )


def _observed(claim: Mapping[str, Any]) -> str:
    """The numbers that a verdict rests on: intervals drawn, a long list to be opened, else the sentence."""
    text, numbers = str(claim.get("observed", "")), effects.of(claim)
    sentence = f"<p>{escape(text)}</p>" if text else ""
    if seen := effects.with_interval(numbers):
        folded = html_parts.details("The same in words", sentence) if len(text) > _LONG else sentence
        return f'<div class="observed">{effects.drawn(seen)}{folded}</div>'
    if len(numbers) > 2:
        items = "".join(f"<li>{escape(f'{one.unit}: {one.name} {one.text}')}</li>" for one in numbers)
        listed = f"<ul>{items}</ul>"
        listed = html_parts.details(f"All {len(numbers)}", listed) if len(numbers) > _MANY else listed
        return f'<div class="observed"><p>{escape(_gist(claim))}</p>{listed}</div>'
    return f'<div class="observed">{sentence}</div>' if sentence else ""
