"""The concordance index against a loop over all pairs.

    python -m benchmarks.cindex

5,000 patients with tied times and tied risks; both forms return the same number.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.measure import Table, alternate, at_least, compare_outputs
from benchmarks.script import run_script
from nnunet_gdla.mil.survival import concordance_index

PATIENTS = 5000


def table(quick: bool = True) -> Table:
    """Measure 5,000 patients; the time of ours alone for many more."""
    repeats = 1 if quick else 5
    found = Table(
        "Concordance index",
        f"{PATIENTS} patients, 40 % events, ties in times and risks; the rival is a Python loop over all pairs.",
        "python -m benchmarks.cindex",
    )
    time, event, risk = _cohort(PATIENTS)
    lists = time.tolist(), event.tolist(), risk.tolist()
    compare_outputs(by_pairs(*lists), concordance_index(time, event, risk), 1e-12)
    times = alternate(
        {"rival": lambda: by_pairs(*lists), "ours": lambda: concordance_index(time, event, risk)}, repeats
    )
    found.add_times(f"{PATIENTS} patients", times["rival"], times["ours"], at_least(100))
    many = _cohort(100 * PATIENTS)
    alone = alternate({"ours": lambda: concordance_index(*many)}, 3)["ours"]
    found.notes.append(f"Ours for {100 * PATIENTS} patients: {alone.cpu:.2f} s of processor time.")
    return found


def _cohort(patients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    time = np.round(generator.exponential(1000, patients), 0)
    return time, generator.random(patients) < 0.4, np.round(generator.normal(size=patients), 3)


def by_pairs(time: Sequence[float], event: Sequence[bool], risk: Sequence[float]) -> float:
    """Look at all pairs; equal times are comparable if exactly one of them is an event."""
    score = pairs = 0.0
    for i, seen in enumerate(event):
        if not seen:
            continue
        for j in range(len(time)):
            if time[i] < time[j] or (time[i] == time[j] and not event[j]):
                pairs += 1
                score += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    return score / pairs


if __name__ == "__main__":
    run_script(table, __doc__)
