import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnunet_gdla.commands.phantom import CLASSES, DATASET_NAME, make_case, write_dataset


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_dataset(tmp_path / name, 3, num_training=3, num_test=2)
    write_dataset(tmp_path / "c", 4, num_training=3, num_test=2)
    first = _files(tmp_path / "a")
    assert first == _files(tmp_path / "b")
    assert set(first) == set(_files(tmp_path / "c"))
    assert not set(first.values()) & set(_files(tmp_path / "c").values())


def test_a_case_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    write_dataset(tmp_path / "few", 0, num_training=1, num_test=1)
    write_dataset(tmp_path / "many", 0, num_training=4, num_test=3)
    many = _files(tmp_path / "many")
    images = {name: data for name, data in _files(tmp_path / "few").items() if name.endswith(".png")}
    assert len(images) == 4
    assert all(many[name] == data for name, data in images.items())


def test_training_and_held_out_cases_differ(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, 0, num_training=4, num_test=4)
    images = [path.read_bytes() for path in dataset.glob("images*/*.png")]
    assert len(images) == len(set(images)) == 8


@pytest.mark.parametrize("seed", range(20))
def test_every_class_is_in_every_case_and_stands_out(seed: int) -> None:
    case = make_case(np.random.default_rng(seed))
    assert case.image.dtype == case.label.dtype == np.uint8
    assert case.image.shape == case.label.shape
    assert set(np.unique(case.label)) == set(range(len(CLASSES) + 1))
    background = case.image[case.label == 0].mean()
    for value in range(1, len(CLASSES) + 1):
        share = (case.label == value).mean()
        assert 0.002 < share < 0.25
        assert case.image[case.label == value].mean() > background + 15


def test_sizes_vary_and_are_no_multiples_of_32() -> None:
    shapes = [make_case(np.random.default_rng(seed)).image.shape for seed in range(40)]
    assert len(set(shapes)) > 30
    assert all(90 <= side <= 128 and side % 32 for shape in shapes for side in shape)
    assert any(height != width for height, width in shapes)


def test_brightness_alone_does_not_tell_the_compact_classes_apart() -> None:
    cases = [make_case(np.random.default_rng([9, seed])) for seed in range(40)]
    means = [[case.image[case.label == value].mean() for case in cases] for value in (1, 2, 3)]
    spread = np.std(means)
    assert np.ptp(np.mean(means, axis=1)) < spread / 2


def test_nnunet_reads_the_dataset(tmp_path: Path) -> None:
    from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json
    from nnunetv2.utilities.utils import get_filenames_of_train_images_and_targets

    dataset = write_dataset(tmp_path, 1, num_training=3, num_test=2)
    assert dataset == tmp_path / DATASET_NAME
    description = json.loads((dataset / "dataset.json").read_text())
    assert list(description["labels"]) == ["background", *CLASSES]
    cases = get_filenames_of_train_images_and_targets(str(dataset), description)
    assert len(cases) == description["numTraining"] == len(list((dataset / "labelsTr").iterdir())) == 3
    for case in cases.values():
        reader = determine_reader_writer_from_dataset_json(description, case["images"][0], verbose=False)()
        image, _ = reader.read_images(case["images"])
        label, _ = reader.read_seg(case["label"])
        assert image.shape == label.shape
        assert set(np.unique(label)) == set(description["labels"].values())
    for path in (dataset / "imagesTs").iterdir():
        with Image.open(path) as image, Image.open(dataset / "labelsTs" / path.name.replace("_0000", "")) as label:
            assert image.size == label.size
            assert image.mode == label.mode == "L"
