"""The encoder of a cohort: read from every layout, compared by meaning, kept with the model."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import Bundle
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.check import check_cohort
from nnunet_gdla.mil.cohort import Cohort, folder_cohort
from nnunet_gdla.mil.evaluate import predict_table
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.prepare import prepare
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.mil.slides.encoders import encoder_key, same_encoder
from tests.mil.slide_files import bag, grid, write_h5
from tests.mil.small_cohorts import make_cohort, small_config

UNI2 = ["uni_v2", "UNI_V2", "uni2", "uni-2", "UNI2-h", "hf-hub:MahmoodLab/UNI2-h", "mahmood-uni2-h", " uni_v2 "]


def stamp(path: Path, on_file: dict[str, Any]) -> Path:
    return write_h5(path, {"coords": grid() * 256.0, "feats": bag(30)}, on_file={"unit": "um"} | on_file)


@pytest.mark.parametrize("name", UNI2)
def test_m2_spellings_of_one_encoder_are_equal(name: str) -> None:
    assert encoder_key(name) == encoder_key("uni_v2")


def test_m2_other_encoders_stay_apart() -> None:
    names = ["uni_v1", "uni_v2", "virchow", "virchow2", "conch_v1", "conch_v15", "hoptimus0", "hoptimus1", "phikon"]
    names += [
        "phikon_v2",
        "gigapath",
        "lunit-vits8",
        "kaiko-vits8",
        "kaiko-vits16",
        "resnet18",
        "resnet50",
        "ctranspath",
    ]
    names += ["chief-ctranspath", "musk", "plip", "hibou_b", "hibou_l"]
    assert len({encoder_key(name) for name in names}) == len(names)
    assert same_encoder("uni", "uni_v1")
    assert same_encoder("conch1_5", "CONCH-v1.5")
    assert same_encoder("Prov-GigaPath", "gigapath")
    assert same_encoder(None, "uni")


@pytest.mark.parametrize(
    "value", ["virchow2", np.bytes_(b"virchow2"), np.array(["virchow2"], dtype=object)], ids=["text", "bytes", "array"]
)
def test_m2_stamps_extractor_is_the_encoder(value: object, tmp_path: Path) -> None:
    assert read_slide(stamp(tmp_path / "s.h5", {"extractor": value})).encoder == "virchow2"


@pytest.mark.parametrize("value", ["", "unknown", h5py.Empty("S8")], ids=["blank", "unknown", "empty"])
def test_m2_an_attribute_that_says_nothing_is_no_encoder(value: object, tmp_path: Path) -> None:
    assert read_slide(stamp(tmp_path / "s.h5", {"extractor": value})).encoder is None


def test_m2_attributes_of_other_layouts(tmp_path: Path) -> None:
    for number, name in enumerate(("encoder", "patch_encoder", "feature_extractor", "encoder_name")):
        path = write_h5(tmp_path / f"{number}.h5", {"coords": grid() * 256, "features": bag(30)}, on_file={name: "uni"})
        assert read_slide(path).encoder == "uni"
        with h5py.File(path, "r+") as file:
            file["features"].attrs[name] = "conch_v15"
        assert read_slide(path).encoder == "conch_v15"


def test_m2_a_cohort_of_two_encoders_is_refused_however_they_are_written(tmp_path: Path) -> None:
    for number, name in enumerate([*UNI2[:3], "virchow2"]):
        stamp(tmp_path / f"s{number}.h5", {"extractor": name})
    cohort = folder_cohort(tmp_path)
    report = check_cohort(cohort, strict=False)
    assert "FAIL encoder virchow2 instead of uni_v2 in 1 slide: s3" in report.lines
    assert "PASS one encoder: uni_v2" in check_cohort(Cohort(None, cohort.table[:3])).lines


def test_m1_the_first_slide_names_no_encoder_and_another_does(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    with h5py.File(tmp_path / "h5" / "s05.h5", "r+") as file:
        file["features"].attrs["encoder"] = "uni_v2"
    config = small_config(tmp_path, "classification")
    for check_files in (True, False):
        prepared = prepare(config, check_files=check_files)
        assert prepared.info.encoder == "uni_v2"
        assert prepared.config.found is not None
        assert prepared.config.found.encoder == "uni_v2"
    prepared.config.found.encoder = "virchow2"
    with pytest.raises(UserError, match=r"come from uni_v2, the settings were made with virchow2"):
        prepare(prepared.config)


def bundle(encoder: str | None) -> Bundle:
    info = BundleInfo("classification", "abmil", {"width": 8}, 8, 2, ("a", "b"), encoder=encoder, needs_coords=False)
    torch.manual_seed(0)
    model: nn.Module = build_model("abmil", 8, 2, width=8)
    return Bundle(info, (model.eval(),), torch.device("cpu"))


def test_m2_a_model_refuses_files_of_another_encoder_and_a_mixture(tmp_path: Path) -> None:
    stamp(tmp_path / "a" / "s0.h5", {"extractor": "UNI2-h"})
    stamp(tmp_path / "a" / "s1.h5", {})
    table = folder_cohort(tmp_path / "a").table
    assert len(predict_table(bundle("uni_v2"), table)) == 2
    with pytest.raises(UserError, match="features come from UNI2-h, the model was trained on virchow2"):
        predict_table(bundle("virchow2"), table)
    stamp(tmp_path / "a" / "s2.h5", {"extractor": "virchow2"})
    with pytest.raises(UserError, match="features of s0 come from UNI2-h, of s2 from virchow2"):
        predict_table(bundle(None), folder_cohort(tmp_path / "a").table)
