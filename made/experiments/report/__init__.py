"""The reproduction page: one HTML file that holds every claim, figure, curve, map and video, and needs nothing else.

`section` is the plain data of one experiment, `page` makes HTML of it, `digest` keeps it on disk; `curves`, `heatmaps`
and `agents` read recorded runs. `assets` holds the style and the scripts that are written into the page.
"""
