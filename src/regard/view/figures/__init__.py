"""Figures for papers: light, without a frame around them, sized in millimetres, with text as outlines.

    matrix    one head: a row for each query, a column for each key, and a colour bar
    lines     one head or several: lines from the queries on the left to the keys on the right
    row       one query of one head: the text, shaded by its weights
    grid      all heads, a row of small maps for each layer

``figure`` has the result and its files, ``text_on_figures`` fonts and widths, ``colours`` the scales of the page.
"""
