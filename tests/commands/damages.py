"""What can happen to a dataset that is ready to train."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blosc2
import nibabel
import numpy as np
import torch

from tests.commands.made_datasets import change, read, save
from tests.commands.prepared_datasets import PLANS, edit_json, fresh

__all__ = [
    "Damage",
    "Place",
    "as_file",
    "as_folder",
    "as_numpy",
    "both",
    "checkpoint",
    "cut",
    "cut_latest",
    "damaged_record",
    "described",
    "listed",
    "lost_case",
    "more_classes",
    "names",
    "new_case",
    "new_channel",
    "not_finite",
    "pickled",
    "plan",
    "plans",
    "put",
    "raw_json",
    "remove",
    "resized",
    "respaced",
    "splits",
    "stored",
    "swapped",
    "touched",
    "without_trace",
    "zeros_within",
]


@dataclass(frozen=True)
class Place:
    """Where a dataset lies."""

    raw: Path
    preprocessed: Path
    results: Path

    @property
    def data(self) -> Path:
        """The preprocessed cases."""
        return self.preprocessed / f"{PLANS}_2d"

    @property
    def fold(self) -> Path:
        """The folder of fold 0."""
        return self.model / "fold_0"

    @property
    def model(self) -> Path:
        """The folder of the model."""
        return self.results / self.raw.name / f"nnUNetTrainerGDLA__{PLANS}__2d"


Damage = Callable[[Place], object]


def plans(edit: Callable[[Any], Any]) -> Damage:
    return lambda place: edit_json(place.preprocessed / f"{PLANS}.json", edit)


def plan(**changes: Any) -> Damage:  # noqa: ANN401 - any JSON
    return plans(lambda content: content["configurations"]["2d"].update(changes))


def described(**changes: Any) -> Damage:  # noqa: ANN401 - any JSON
    """Change the dataset.json beside the plans."""
    return lambda place: edit_json(place.preprocessed / "dataset.json", lambda content: content.update(changes))


def raw_json(**changes: Any) -> Damage:  # noqa: ANN401 - any JSON
    return lambda place: edit_json(place.raw / "dataset.json", lambda content: content.update(changes))


def splits(content: object) -> Damage:
    return lambda place: (place.preprocessed / "splits_final.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )


def names(*numbers: int, ending: str = "") -> list[str]:
    return [f"case_{number}{ending}" for number in numbers]


def cut(name: str, size: int = -40) -> Damage:
    def damage(place: Place) -> None:
        path = fresh(place.preprocessed / name)
        path.write_bytes(path.read_bytes()[:size])

    return damage


def remove(name: str) -> Damage:
    return lambda place: (place.preprocessed / name).unlink()


def pickled(edit: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(place: Place) -> None:
        path = fresh(place.data / "case_2.pkl")
        content = pickle.loads(path.read_bytes())
        edit(content)
        path.write_bytes(pickle.dumps(content))

    return damage


def stored(name: str, edit: Callable[[Any], Any]) -> Damage:
    def damage(place: Place) -> None:
        path = place.data / f"{name}.b2nd"
        array = edit(blosc2.open(str(path))[:].copy())
        path.unlink()
        blosc2.asarray(np.ascontiguousarray(array), urlpath=str(path))

    return damage


def put(value: float) -> Callable[[Any], Any]:
    def edit(array: Any) -> Any:  # noqa: ANN401
        array[..., 20, 20] = value
        return array

    return edit


def without_trace(name: str, edit: Callable[[Any], Any]) -> Damage:
    """Change a raw file and keep its time."""

    def damage(place: Place) -> None:
        path = fresh(place.raw / name)
        before = path.stat().st_mtime_ns
        change(path, edit)
        os.utime(path, ns=(before, before))

    return damage


def resized(place: Place) -> None:
    for name in ("imagesTr/case_3_0000.png", "labelsTr/case_3.png"):
        without_trace(name, lambda pixels: pixels[:-4])(place)


def new_case(place: Place) -> None:
    save(place.raw / "imagesTr" / "new_0000.png", read(place.raw / "imagesTr" / "case_0_0000.png"))
    save(place.raw / "labelsTr" / "new.png", read(place.raw / "labelsTr" / "case_0.png"))
    raw_json(numTraining=7)(place)


def lost_case(place: Place) -> None:
    (place.raw / "imagesTr" / "case_0_0000.png").unlink()
    (place.raw / "labelsTr" / "case_0.png").unlink()
    raw_json(numTraining=5)(place)


def new_channel(place: Place) -> None:
    for number in range(6):
        image = place.raw / "imagesTr" / f"case_{number}_0000.png"
        save(image.with_name(f"case_{number}_0001.png"), read(image))
        (place.raw / "imagesTs" / image.name).unlink()
    raw_json(channel_names={"0": "US", "1": "Doppler"})(place)


def touched(place: Place) -> None:
    path = fresh(place.raw / "imagesTr" / "case_1_0000.png")
    later = (place.data / "case_1.pkl").stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))


def respaced(place: Place) -> None:
    """Another pixel size in the headers of a case, without trace in its time."""
    for name in ("imagesTr/case_3_0000.nii.gz", "labelsTr/case_3.nii.gz"):
        path = place.raw / name
        before = path.stat().st_mtime_ns
        image: Any = nibabel.load(path)
        pixels = np.asanyarray(image.dataobj)
        path.unlink()
        nibabel.save(nibabel.Nifti1Image(pixels, np.diag([1.4, 1.4, 0.7, 1])), path)
        os.utime(path, ns=(before, before))


def swapped(place: Place) -> None:
    """The properties of two cases whose objects are of one size."""
    one, two = fresh(place.data / "case_1.pkl"), fresh(place.data / "case_2.pkl")
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def as_file(where: str, name: str = "") -> Damage:
    """A file where a folder was, or will be: a folder of `Place`, or one in it."""

    def damage(place: Place) -> None:
        path = getattr(place, where) / name
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    return damage


def as_folder(where: str, name: str) -> Damage:
    """A folder where a file was, or will be."""

    def damage(place: Place) -> None:
        path = getattr(place, where) / name
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)

    return damage


def as_numpy(place: Place) -> None:
    """The cases in the format of older versions."""
    for path in place.data.glob("*_seg.b2nd"):
        case = path.name.removesuffix("_seg.b2nd")
        image, mask = (blosc2.open(str(place.data / name))[:] for name in (f"{case}.b2nd", path.name))
        np.savez_compressed(place.data / f"{case}.npz", data=image, seg=mask)
    for path in place.data.glob("*.b2nd"):
        path.unlink()


def listed(place: Place) -> None:
    """The files of a raw dataset in dataset.json, under another name than nnU-Net's."""
    (place.raw / "imagesTr").rename(place.raw / "pictures")
    table = {
        f"case_{number}": {"images": [f"pictures/case_{number}_0000.png"], "label": f"labelsTr/case_{number}.png"}
        for number in range(6)
    }
    raw_json(dataset=table)(place)


def zeros_within(name: str) -> Damage:
    def damage(place: Place) -> None:
        path = fresh(place.data / name)
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle - 200 : middle + 200] = bytes(400)
        path.write_bytes(content)

    return damage


def checkpoint(name: str, edit: Callable[[dict[str, Any]], object] = lambda content: None) -> Damage:
    """Put a checkpoint of this training, or one that is changed, into the results folder."""

    def damage(place: Place) -> None:
        content = torch.load(place.results / "made.pth", weights_only=False)
        edit(content)
        place.fold.mkdir(parents=True, exist_ok=True)
        torch.save(content, place.fold / name)

    return damage


def more_classes(content: dict[str, Any]) -> None:
    weights = content["network_weights"]
    for name in [name for name in weights if ".seg_layers." in name]:
        weights[name] = torch.cat([weights[name], weights[name][:1]])


def not_finite(content: dict[str, Any]) -> None:
    for value in content["network_weights"].values():
        if value.is_floating_point():
            value.fill_(torch.nan)


def cut_latest(place: Place) -> None:
    checkpoint("checkpoint_best.pth")(place)
    checkpoint("checkpoint_latest.pth")(place)
    path = place.fold / "checkpoint_latest.pth"
    path.write_bytes(path.read_bytes()[:-5000])


def damaged_record(place: Place) -> None:
    checkpoint("checkpoint_latest.pth")(place)
    path = place.fold / "checkpoint_latest.pth"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def both(*damages: Damage) -> Damage:
    return lambda place: [damage(place) for damage in damages]
