"""The numberings of organs that circulate for Synapse (BTCV), told apart by the size of the liver.

Standard library only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from nnunet_gdla.errors import UserError

__all__ = ["LABELS", "ORDERS", "choose_order"]

LABELS = {
    "background": 0,
    "spleen": 1,
    "right kidney": 2,
    "left kidney": 3,
    "gallbladder": 4,
    "pancreas": 5,
    "liver": 6,
    "stomach": 7,
    "aorta": 8,
}

# From each numbering to LABELS.
ORDERS: dict[str, dict[int, int]] = {
    # the release: 5 oesophagus, 9 inferior vena cava, 10 portal and splenic vein, 11 pancreas, 12 and 13 adrenal glands
    "btcv13": {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 0, 6: 6, 7: 7, 8: 8, 9: 0, 10: 0, 11: 5, 12: 0, 13: 0},
    # the release's order of the eight organs
    "btcv8": {label: label for label in range(9)},
    # prepared copies: aorta, gallbladder, left kidney, right kidney, liver, pancreas, spleen, stomach
    "prepared8": {0: 0, 1: 8, 2: 4, 3: 3, 4: 2, 5: 6, 6: 5, 7: 1, 8: 7},
}
_LIVER = {"btcv13": 6, "btcv8": 6, "prepared8": 5}

# A liver has 1000 ml and more, a pancreas or an oesophagus below 150; other organs reach half a liver in few patients.
_CLEARLY = 3.0
_LARGEST = 1.2


def choose_order(counts: Mapping[str, Mapping[int, int]], wanted: str) -> str:
    """Return the numbering of a copy from the voxels of each label in each case.

    Labels 5 and 6 are liver and pancreas (release: oesophagus), in one order or the other. Every case that has one of
    them has to say the same, and the liver has to be the largest organ of all cases together.

    Args:
        counts: Voxels of each label, by case.
        wanted: "auto", or a key of `ORDERS` that the sizes must not contradict.

    Raises:
        UserError: If the sizes leave a doubt, or contradict `wanted`.
    """
    total: Counter[int] = Counter()
    for own in counts.values():
        total.update({label: count for label, count in own.items() if label != 0})
    foreign = sorted(label for label in total if label not in ORDERS["btcv13"])
    if foreign:
        raise UserError(f"the labels go beyond BTCV's 13, there are {foreign}: this is another dataset's numbering")
    livers = {name: _liver(own) for name, own in counts.items()}
    found = sorted({liver for liver in livers.values() if liver is not None})
    if wanted != "auto":
        if max(total, default=0) > max(ORDERS[wanted]):
            raise UserError(f"--label-order {wanted} has labels up to {max(ORDERS[wanted])}, there are {_sizes(total)}")
        against = [name for name, liver in livers.items() if liver not in (None, _LIVER[wanted])]
        if against:
            raise UserError(
                f"by --label-order {wanted} the liver is label {_LIVER[wanted]}, but {11 - _LIVER[wanted]} is far "
                f"larger in {_some(against)} ({_sizes(total)})"
            )
        return wanted
    if len(found) > 1:
        groups = "; ".join(
            f"label {liver} in {_some(n for n, own in livers.items() if own == liver)}" for liver in found
        )
        raise UserError(f"two numberings of organs are mixed, the liver is {groups}: convert them one by one")
    if not found or total[found[0]] < _LARGEST * _largest_beside(total, found[0]):
        raise UserError(
            "the sizes do not tell the numbering of the organs: the liver, label 6 in the release's order and 5 in "
            f"that of prepared copies, should be the largest by far, voxels are {_sizes(total)}; if you know the "
            f"numbering, name it with --label-order {{{','.join(ORDERS)}}}"
        )
    return _named(found[0], max(total))


def _named(liver: int, highest: int) -> str:
    if highest > 8:
        if liver != 6:
            raise UserError(
                f"labels go up to {highest} as in the release, but label 5 is far larger than 6, the release's liver: "
                "this is another numbering"
            )
        return "btcv13"
    return "btcv8" if liver == 6 else "prepared8"


def _largest_beside(total: Mapping[int, int], liver: int) -> int:
    return max((count for label, count in total.items() if label != liver), default=0)


def _liver(own: Mapping[int, int]) -> int | None:
    five, six = own.get(5, 0), own.get(6, 0)
    if six > _CLEARLY * five:
        return 6
    return 5 if five > _CLEARLY * six else None


def _sizes(total: Mapping[int, int]) -> str:
    return ", ".join(f"{label}: {count}" for label, count in sorted(total.items())) or "none"


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    return ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
