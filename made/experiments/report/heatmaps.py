"""Figure 5 as plain data: visits to the lock, stretch by stretch, for the page's slider."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from made.experiments import plots
from made.experiments.paper import lock_probes
from made.experiments.report import html_parts
from made.experiments.store.table import Table
from made.tabular.families import Lock

ROWS = ("large reward, good", "large reward, dead", "small reward, good", "small reward, dead")
FORMS = {"vi": "Q never rises, as in He et al.", "vi-plain": "Q may rise again"}


def of(table: Table) -> dict[str, Any]:
    """Median visits over seeds: for each form of value iteration and each bonus, a map [4, H] a stretch."""
    steps, visits = table.arrays("vi/bernstein", "visits")
    lock = Lock(H=(visits.shape[2] - 2) // 4)
    places = np.array([[int(x(c, h)) for h in range(lock.H)] for c in (0, 1) for x in (lock.good, lock.dead)])
    forms = []
    for form, text in FORMS.items():
        methods = [m for m in lock_probes.SHOWN if f"{form}/{m}" in table.labels()]
        if methods:
            forms.append({"text": text, "methods": [_method(table, form, m, places) for m in methods]})
    return {
        "rows": ROWS,
        "columns": lock.H,
        "steps": [int(step) for step in steps],
        "seeds": len(table.seeds("vi/bernstein")),
        "forms": forms,
    }


def _method(table: Table, form: str, method: str, places: np.ndarray) -> dict[str, Any]:
    median = np.median(lock_probes.maps(table, f"{form}/{method}"), axis=0)
    frames = [[float(f"{x:.4g}") for x in stretch[places].ravel()] for stretch in median]
    return {"text": plots.style_of(method).text, "frames": frames}


def controls(given: Mapping[str, Any], name: str) -> str:
    """The place of the maps in the page, with the slider that plays them; scripts fill it."""
    forms = "".join(f'<option value="{i}">{escape(form["text"])}</option>' for i, form in enumerate(given["forms"]))
    last = len(given["steps"]) - 1
    rows = "; ".join(given["rows"])
    return (
        f'<div class="maps widget" data-from="{name}" hidden><div class="row">'
        '<button type="button" class="play" aria-pressed="false">Play</button>'
        f'<label for="{name}-at">Stretch</label>'
        f'<input type="range" id="{name}-at" class="at" min="0" max="{last}" step="1" value="0">'
        f'<output class="when" for="{name}-at"></output></div>'
        f'<div class="row"><label for="{name}-form">Value iteration</label>'
        f'<select id="{name}-form" class="form">{forms}</select></div>'
        '<div class="panels"></div><div class="key" aria-hidden="true"></div>'
        f'<p class="note">Visits within each stretch of episodes, median over {int(given["seeds"])} seeds. Rows of '
        f"each map, from the top: {escape(rows)}; columns: the {int(given['columns'])} steps of the lock.</p></div>"
        f"<noscript><p>The slider needs JavaScript; the figure shows the same.</p></noscript>"
        f"{html_parts.data(given, name)}"
    )
