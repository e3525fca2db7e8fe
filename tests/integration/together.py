"""Run several of nnU-Net's commands in one process: `python together.py calls.json`.

For datasets so small that starting a process costs more than they do. For the same reason two things are not quite
nnU-Net's: pools are forked and not spawned, and a fingerprint draws 10^4 intensities a channel instead of 10^8.
The file holds a list of calls: module and name of a command's entry point, then its arguments.
"""

import importlib
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from nnunetv2.experiment_planning.dataset_fingerprint import fingerprint_extractor

__all__ = ["main"]


class _Brief(fingerprint_extractor.DatasetFingerprintExtractor):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - nnU-Net's own
        super().__init__(*args, **kwargs)
        self.num_foreground_voxels_for_intensitystats = 10_000


def main(calls: list[list[str]]) -> None:
    """Run each call as its command would."""
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    fingerprint_extractor.DatasetFingerprintExtractor = _Brief
    for module, function, *arguments in calls:
        sys.argv = [function, *arguments]
        getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
