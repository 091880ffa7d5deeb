"""Speed of regard, compared with other implementations and with the machine's measured peaks.

    python -m benchmarks                                   every suite; writes benchmarks/results/<machine>.json
    python -m benchmarks --missing --minutes 30            what the results of this machine lack, most valuable first
    python -m benchmarks forward --quick                   a quick run of one suite
    python -m benchmarks forward --cases fp32,2048 --contestants native,sdpa
    python -m benchmarks.report                            writes docs/speed.md and its plots from the results

``suites`` contains the suites, one per file. A case is prepared (``case``), the result of every contestant is compared
with float64 (``accuracy``), all contestants and the machine's own peaks (``peaks``) are timed in turns (``timing``),
and the targets are judged (``targets``).
"""
