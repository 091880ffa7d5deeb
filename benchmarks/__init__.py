"""How fast regard is, beside its peers and beside what the machine can do at the most.

    python -m benchmarks                                   every family; writes benchmarks/results/<machine>.json
    python -m benchmarks forward --quick                   a look at one family
    python -m benchmarks forward --cases fp32,2048 --contestants native,sdpa
    python -m benchmarks.report                            docs/speed.md and its plots, from the results

``families`` holds what is measured, a file a family. A case is prepared (``case``), every contestant's answer is
compared with float64 (``answers``), all contestants and the machine's own peaks (``peaks``) are timed in turns
(``timing``), and what was promised is judged (``targets``).
"""
