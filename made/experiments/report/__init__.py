"""The reproduction page: one HTML file with every claim, figure, curve, map and video, which needs nothing else.

`collect` finds what is recorded, `model` has the data and report.json, `charts` and `agents` read runs, and `page`
fills the templates in `assets`, which also has the style and the scripts of the page.
"""
