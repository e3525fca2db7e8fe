"""Regions, an ignore label, colour, odd sizes: planned by our planner, trained, validated, predicted."""

from pathlib import Path

import pytest
import torch

from tests.integration.datasets import cases_of, read_json
from tests.integration.masks import assert_fits_images, assert_same_predictions
from tests.integration.stages import GDLA, SHORT_GDLA_PLANS, SHORT_PLANS, predict, prepared, train
from tests.integration.workspace import Workspace

pytestmark = pytest.mark.slow


def train_and_predict(workspace: Workspace, dataset: str, tmp_path: Path, *options: object) -> Path:
    """Return the fold's folder; its validation masks and the predicted ones have been looked at."""
    train(workspace, dataset, GDLA, SHORT_GDLA_PLANS, "--npz", *options)
    predict(workspace, dataset, GDLA, SHORT_GDLA_PLANS, tmp_path / "masks")
    fold = workspace.model(dataset, GDLA, SHORT_GDLA_PLANS) / "fold_0"
    raw = workspace.raw / dataset
    cases = cases_of(raw, "val")
    assert_fits_images(tmp_path / "masks", raw, "imagesTs", cases)
    assert_fits_images(fold / "validation", raw, "imagesTs", cases)
    assert_same_predictions(tmp_path / "masks", fold / "validation", cases)
    return fold


@pytest.mark.parametrize("kind", ["ignore", "odd"])
def test_pictures(kind: str, shared_folder: Path, tmp_path: Path) -> None:
    data, dataset = prepared(shared_folder, kind)
    workspace = Workspace.below(tmp_path, like=data)
    about = read_json(workspace.raw / dataset / "dataset.json")
    planned = read_json(workspace.preprocessed / dataset / f"{SHORT_GDLA_PLANS}.json")["configurations"]["2d"]
    assert all(edge % 32 for edge in planned["patch_size"])
    fold = train_and_predict(workspace, dataset, tmp_path)
    weights = torch.load(fold / "checkpoint_final.pth", weights_only=False)["network_weights"]
    heads = [value for name, value in weights.items() if ".seg_layers." in name and name.endswith("weight")]
    assert {len(head) for head in heads} == {len(about["labels"]) - ("ignore" in about["labels"])}
    # every channel has weights of its own in the first convolution
    assert weights["encoder.patch_embed.proj.weight"].shape[1] == len(about["channel_names"])


def test_regions_from_a_model_with_other_classes(
    shared_folder: Path, trained_classes: tuple[Workspace, str], tmp_path: Path
) -> None:
    data, dataset = prepared(shared_folder, "regions")
    workspace = Workspace.below(tmp_path, like=data)
    about, other = (read_json(data.raw / name / "dataset.json") for data, name in ((data, dataset), trained_classes))
    origin = trained_classes[0].model(trained_classes[1], GDLA, SHORT_PLANS) / "fold_0" / "checkpoint_final.pth"
    fits = len(about["channel_names"]) == len(other["channel_names"])
    fold = train_and_predict(workspace, dataset, tmp_path, *(("-pretrained_weights", origin) if fits else ()))
    if not fits:
        pytest.skip(f"{dataset} has other channels than {trained_classes[1]}, it was trained from random weights")

    before, after = (
        torch.load(path, weights_only=False)["network_weights"] for path in (origin, fold / "checkpoint_final.pth")
    )
    assert before.keys() == after.keys()
    heads = {name for name in before if ".seg_layers." in name}
    assert {len(before[name]) for name in heads} == {len(other["labels"])}
    assert {len(after[name]) for name in heads} == {len(about["regions_class_order"])}
    # Sixteen small steps leave weights near those they began with; from random ones they would be unrelated.
    matrices = [name for name in sorted(before.keys() - heads) if before[name].ndim > 1]
    old, new = (torch.cat([weights[name].double().flatten() for name in matrices]) for weights in (before, after))
    assert torch.cosine_similarity(old, new, dim=0) > 0.9
