"""Metrics of survival models from counts of rows alone, so sums over sites suffice.

The counts of all rows are an array of integers ``cells[k, e, b]``: the number of rows that leave at grid time k (0 to
K - 1), with an event (e = 1) or censored (e = 0), and with a score in bin b. Bins are in ascending order of the score,
and a larger score means an earlier event.

All modules place events before censorings at the same grid time: a row censored at k is at risk at k. The metrics equal
the metrics of the rows with these grid times, except for the scores: rows of one bin count as rows with equal scores.

The counts do not show when rows came under observation. Only `problems.survival.kaplan_meier` accepts entries later
than grid time 0; do not apply the other modules to such rows.
"""
