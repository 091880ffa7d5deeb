"""Faults of the kernel of packed rows: the name, the right text and the wrong one."""

PACKED = [
    # texts
    ("one text of all", "range(len(cu_seqlens_q) - 1)", "range(1)"),
    ("first text skipped", "range(len(cu_seqlens_q) - 1)", "range(1, len(cu_seqlens_q) - 1)"),
    ("last text skipped", "range(len(cu_seqlens_q) - 1)", "range(len(cu_seqlens_q) - 2)"),
    ("queries start one late", "yield cu_seqlens_q[text],", "yield cu_seqlens_q[text] + 1,"),
    (
        "keys start one late",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1]",
        "cu_seqlens_k[text] + 1, cu_seqlens_k[text + 1]",
    ),
    (
        "keys start one early",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1]",
        "max(cu_seqlens_k[text] - 1, 0), cu_seqlens_k[text + 1]",
    ),
    (
        "keys end one early",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1]",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1] - 1",
    ),
    (
        "keys end one late",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1]",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1] + (text < len(cu_seqlens_k) - 2)",
    ),
    (
        "keys of the text before, too",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1]",
        "cu_seqlens_k[max(text - 1, 0)], cu_seqlens_k[text + 1]",
    ),
    ("all keys", "cu_seqlens_k[text], cu_seqlens_k[text + 1]", "0, cu_seqlens_k[-1]"),
    (
        "keys by the lengths of queries",
        "cu_seqlens_k[text], cu_seqlens_k[text + 1]",
        "cu_seqlens_q[text], cu_seqlens_q[text + 1]",
    ),
    (
        "last text runs on",
        "    output, lse = np.zeros((total, heads",
        "    cu_seqlens_k = np.append(cu_seqlens_k[:-1], len(k))\n    output, lse = np.zeros((total, heads",
    ),
    (
        "empty texts dropped",
        "cu_seqlens_q[text], cu_seqlens_q[text + 1]",
        "np.unique(cu_seqlens_q)[min(text, len(np.unique(cu_seqlens_q)) - 2)], np.unique(cu_seqlens_q)[min(text, len(np.unique(cu_seqlens_q)) - 2) + 1]",
    ),
    # the longest text
    (
        "longest text of queries for keys",
        "for columns in tiles(max_seqlen_k, keys):\n                visible = find_visible(rows, columns, queries, keys, causal, window_size)\n                scores = score(q[q_start",
        "for columns in tiles(max_seqlen_q, keys):\n                visible = find_visible(rows, columns, queries, keys, causal, window_size)\n                scores = score(q[q_start",
    ),
    ("longest text one tile too short", "range(0, longest, TILE)", "range(0, longest // TILE * TILE, TILE)"),
    ("tiles of the longest text", "min(first + TILE, length)", "min(first + TILE, longest)"),
    ("a single tile", "range(0, longest, TILE)", "range(0, min(longest, TILE), TILE)"),
    # alignment and windows
    ("top-left alignment", "[:, None] + (keys - queries)", "[:, None]"),
    ("alignment by the longer side", "+ (keys - queries)", "+ abs(keys - queries)"),
    (
        "alignment of the whole row",
        "position = rows[:, None] + (keys - queries)",
        "position = rows[:, None] + max(keys - queries, 0)",
    ),
    ("own position hidden", "(columns <= position)", "(columns < position)"),
    ("next position visible", "(columns <= position)", "(columns <= position + 1)"),
    ("causal ignored", "if causal:", "if False:"),
    ("left edge one key short", "(columns >= position - left)", "(columns > position - left)"),
    ("right edge one key long", "(columns <= position + right)", "(columns <= position + right + 1)"),
    ("window ignored", "left, right = window_size", "left, right = -1, -1"),
    ("window not with a causal mask", "if left >= 0:", "if left >= 0 and not causal:"),
    ("left bound 0 means unbounded, right", "if right >= 0:", "if right > 0:"),
    # heads and scores
    (
        "wrong repeat of key heads",
        "queries, keys, g = q_end - q_start, k_end - k_start, h // group\n        for rows in tiles(max_seqlen_q, queries):\n            highest",
        "queries, keys, g = q_end - q_start, k_end - k_start, h % k.shape[1]\n        for rows in tiles(max_seqlen_q, queries):\n            highest",
    ),
    ("no scale", "scores = scale * (query @ key.T)", "scores = query @ key.T"),
    ("softcap ignored", "return scores if softcap is None else", "return scores if True else"),
    (
        "sinks ignored",
        "            if sinks is not None:\n                highest",
        "            if False:\n                highest",
    ),
    # running softmax
    (
        "empty rows give NaN",
        "np.where(seen[:, None], summed / np.where(seen, weight, 1)[:, None], 0)",
        "summed / weight[:, None]",
    ),
    ("sum not rescaled", "summed = summed * factor[:, None] + exponentials @", "summed = summed + exponentials @"),
    ("lse without the maximum", "np.where(seen, highest + np.log", "np.where(seen, np.log"),
    ("lse of the first text", "lse[h, q_start + rows] = ", "lse[h, rows] = "),
    # backward
    ("gradient of the key not added over heads", "of_k[there, g] += scale", "of_k[there, g] = scale"),
    ("gradient of the value in the first text's place", "of_v[there, g] +=", "of_v[columns, g] +="),
    (
        "row sum of the first text",
        "(upstream[here, h] * output[here, h]).sum(1)",
        "(upstream[rows, h] * output[rows, h]).sum(1)",
    ),
    (
        "no row sum",
        "of_scores = weights * (upstream[here, h] @ v[there, g].T - total[:, None])",
        "of_scores = weights * (upstream[here, h] @ v[there, g].T)",
    ),
    ("no slope of the softcap", "of_scores * (1 - (scores / softcap) ** 2)", "of_scores"),
    ("no scale in the gradient of the query", "of_q[here, h] += scale * (", "of_q[here, h] += ("),
    ("gradient of the sinks of the last text alone", "of_sinks[h] -= ", "of_sinks[h] = -"),
    (
        "backward keys end by max_seqlen_q",
        "for columns in tiles(max_seqlen_k, keys):\n                there",
        "for columns in tiles(max_seqlen_q, keys):\n                there",
    ),
]
