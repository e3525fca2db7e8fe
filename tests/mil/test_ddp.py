"""Two processes on the CPU train and validate as one."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

from nnunet_gdla.errors import TrainingStopped
from nnunet_gdla.mil.files import read_csv
from nnunet_gdla.mil.fit import fit
from tests.mil.small_cohorts import MODEL, make_cohort, small_config, write_slide

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_figures")]


@pytest.mark.parametrize("task", ["classification", "survival"])
def test_two_processes_equal_one(task: str, tmp_path: Path) -> None:
    make_cohort(tmp_path, task, slides=26)  # 15 to train and 5 to validate: neither is even, the last window is short
    model = MODEL | {"drop_path_rate": 0.3}
    for name, devices in (("one", 1), ("two", 2)):
        config = small_config(tmp_path, task, model=model, epochs=2, devices=devices)
        fit(config, run=tmp_path / name)
    one, two = (pd.read_csv(tmp_path / name / "logs" / "metrics.csv") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two, rtol=1e-4, atol=1e-6)
    gates = [pd.read_csv(tmp_path / name / "gates.csv") for name in ("one", "two")]
    pd.testing.assert_frame_equal(*gates, rtol=1e-3, atol=1e-5)
    weights, others = (load_file(tmp_path / name / "bundle" / "model.safetensors") for name in ("one", "two"))
    assert all(others[name].allclose(tensor, rtol=1e-3, atol=1e-5) for name, tensor in weights.items())
    predictions = [read_csv(tmp_path / name / "predictions_val.csv") for name in ("one", "two")]
    pd.testing.assert_frame_equal(*predictions, rtol=1e-4, atol=1e-6)


def test_a_process_that_stops_stops_the_run(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification", slides=16)
    for number in range(8):
        write_slide(tmp_path / "h5" / f"s{number:02d}.h5", np.full((30, 16), 3e38, dtype=np.float32))
    with pytest.raises(TrainingStopped, match="one of 2 training processes ended"):
        fit(small_config(tmp_path, "classification", devices=2), run=tmp_path / "run")
