"""Defects of datasets that are ready to train, and what `doctor` must answer to each."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.commands.damages import (
    Damage,
    as_file,
    as_folder,
    as_numpy,
    both,
    checkpoint,
    cut,
    cut_latest,
    damaged_record,
    described,
    listed,
    lost_case,
    more_classes,
    names,
    new_case,
    new_channel,
    not_finite,
    pickled,
    plan,
    plans,
    put,
    raw_json,
    remove,
    resized,
    respaced,
    splits,
    stored,
    swapped,
    touched,
    without_trace,
    zeros_within,
)
from tests.commands.prepared_datasets import PLANS, fresh

__all__ = ["DEFECTS", "READY", "Defect"]

READY = "ready"


@dataclass(frozen=True)
class Defect:
    """A defect and the answer.

    Args:
        damage: What is done to a dataset that is ready.
        answer: A word of the FAIL line that must come; `READY` where a training goes well in spite of it.
        warning: A word of the WARN line that must come.
        kind: The dataset: "png", "nifti", or "resampled", which is of another pixel size than the plans.
        options: Options of the command besides the fold.
        fold: The fold.
    """

    damage: Damage
    answer: str
    warning: str = ""
    kind: str = "png"
    options: dict[str, Any] = field(default_factory=dict)
    fold: int | str | None = 0


GOOD = {"train": names(0, 1, 2, 3), "val": names(4, 5)}
OTHER = {"train": names(2, 3, 4, 5), "val": names(0, 1)}
RESUME = {"resume": True}

DEFECTS: dict[str, Defect] = {
    "nothing wrong": Defect(lambda place: None, READY),
    "nothing wrong, volumes": Defect(lambda place: None, READY, kind="nifti"),
    "nothing wrong, resampled": Defect(lambda place: None, READY, kind="resampled", options={"full": True}),
    "every value looked at": Defect(lambda place: None, READY, options={"full": True}),
    "every value looked at, volumes": Defect(lambda place: None, READY, kind="nifti", options={"full": True}),
    # raw files after preprocessing
    "a case was added": Defect(new_case, "raw case without preprocessed data: new"),
    "a case was removed": Defect(lost_case, "not in the raw dataset: case_0"),
    "image and mask were cropped": Defect(resized, "shape of preprocessed case: case_3 was made of 1 x 40 x 48"),
    "a mask was repainted": Defect(
        without_trace("labelsTr/case_4.png", lambda mask: np.roll(mask, 3, 0) | mask),
        "labels of preprocessed case: case_4",
    ),
    "a mask was moved": Defect(
        without_trace("labelsTr/case_4.png", lambda mask: np.roll(mask, 3, 0)),
        "other mask in gt_segmentations: case_4.png",
    ),
    "a mask was moved, its reference too": Defect(
        both(
            without_trace("labelsTr/case_4.png", lambda mask: np.roll(mask, 3, 0)),
            lambda place: (fresh(place.preprocessed / "gt_segmentations" / "case_4.png")).write_bytes(
                (place.raw / "labelsTr" / "case_4.png").read_bytes()
            ),
        ),
        "labels of preprocessed case: case_4 differs from the raw mask",
        options={"full": True},
    ),
    "files are listed in dataset.json": Defect(listed, READY),
    "a listed file is missing": Defect(
        both(listed, lambda place: (place.raw / "pictures" / "case_1_0000.png").unlink()),
        "missing image: case_1_0000.png",
    ),
    "a list without masks": Defect(
        raw_json(dataset={"case_0": {"images": ["imagesTr/case_0_0000.png"]}}), "the entry of case_0 has no"
    ),
    "a class was declared": Defect(
        raw_json(labels={"background": 0, "object": 1, "rim": 2}), "dataset.json: labels is"
    ),
    "a channel was added": Defect(new_channel, "channels of preprocessed case: case_0 has 1, the raw case 2"),
    "pixels have another size": Defect(respaced, "spacing of preprocessed case: case_3", kind="nifti"),
    "an image was written again": Defect(touched, READY, warning="raw files newer than preprocessed data: case_1"),
    # splits
    "names with an ending": Defect(
        splits([{"train": names(0, 1, 2, ending=".png"), "val": names(4, 5)}]),
        "splits, names with an ending: fold 0: case_0.png",
    ),
    "names with a channel": Defect(
        splits([{"train": names(0, 1, 2), "val": names(4, 5, ending="_0000")}]), "splits, names with an ending"
    ),
    "unknown cases": Defect(
        splits([{"train": names(0, 77), "val": names(4)}]), "splits, unknown cases: fold 0: case_77"
    ),
    "a case on both sides": Defect(
        splits([{"train": names(0, 1, 2), "val": names(2, 3)}]), "splits, overlap of train and val: fold 0: case_2"
    ),
    "splits as an object": Defect(splits({"0": GOOD}), "splits_final.json holds a dict"),
    "no folds": Defect(splits([]), "splits_final.json holds an empty list"),
    "names in one string": Defect(splits([{"train": "case_0 case_1", "val": names(4)}]), '"train" is a str'),
    "numbers for names": Defect(splits([{"train": [0, 1], "val": [4]}]), '"train" holds more than names'),
    "another word for val": Defect(splits([{"train": names(0, 1), "test": names(4)}]), '"val" is missing'),
    "nothing to validate": Defect(splits([{"train": names(0, 1, 2, 3, 4, 5), "val": []}]), 'no case in "val"'),
    "nothing to train on": Defect(splits([{"train": [], "val": names(4)}]), 'no case in "train"'),
    "splits that are not JSON": Defect(splits("[{'train': []}]"), "splits_final.json cannot be read"),
    "five folds of four cases": Defect(
        lambda place: (
            [
                path.unlink()
                for number in (0, 1)
                for path in (*place.raw.glob(f"*Tr/case_{number}*"), *place.data.glob(f"case_{number}*"))
            ]
            and raw_json(numTraining=4)(place)
        ),
        "cannot make five folds of 4 cases",
    ),
    "fold beyond the last": Defect(splits([GOOD, OTHER]), READY, warning="fold 2 is not among the 2 folds", fold=2),
    "a case twice": Defect(
        splits([{"train": names(0, 1, 1, 2), "val": names(4, 5)}]), READY, warning='case_1 2 times in "train"'
    ),
    "a case in no fold": Defect(
        splits([{"train": names(0, 1), "val": names(4, 5)}]), READY, warning="cases in no fold: case_2"
    ),
    "another fold is wrong": Defect(
        splits([GOOD, {"train": names(0, 99), "val": names(1)}]),
        READY,
        warning="splits, unknown cases: fold 1: case_99",
    ),
    "fold all needs no splits": Defect(splits("[{"), READY, fold="all"),
    "splits beside the raw data": Defect(
        lambda place: (place.raw / "splits_final.json").write_text(json.dumps([GOOD])),
        READY,
        warning="is not in nnUNet_preprocessed",
    ),
    # plans
    "plans with a typing error": Defect(lambda place: None, "has no plans nnUNetPlan", options={"plans": "nnUNetPlan"}),
    "plans with an ending": Defect(
        lambda place: None, "has no plans nnUNetPlans.json", options={"plans": f"{PLANS}.json"}
    ),
    "plans that are not JSON": Defect(cut(f"{PLANS}.json"), f"{PLANS}.json cannot be read"),
    "plans without configurations": Defect(
        plans(lambda content: content.pop("configurations") and content), "hold no configurations"
    ),
    "plans of another dataset": Defect(
        plans(lambda content: content.update(dataset_name="Dataset802_Other")), "dataset_name is"
    ),
    "plans under another name": Defect(
        plans(lambda content: content.update(plans_name="before")), READY, warning="plans_name is 'before'"
    ),
    "a reader that is unknown": Defect(
        plans(lambda content: content.update(image_reader_writer="PngIO")), "image_reader_writer:"
    ),
    "a label manager that is unknown": Defect(
        plans(lambda content: content.update(label_manager="Labels")), "nnU-Net cannot use them"
    ),
    "axes that are not put back": Defect(
        plans(lambda content: content.update(transpose_forward=[1, 2, 0], transpose_backward=[1, 2, 0])),
        "do not undo each other",
    ),
    "a patch of three sides": Defect(plan(patch_size=[8, 32, 32]), "is not supported: this network is 2D"),
    "a patch of a fraction": Defect(plan(patch_size=[32.5, 32]), "write whole numbers"),
    "a patch of a pixel": Defect(plan(patch_size=[1, 1]), "write sides of at least 4"),
    "a patch of too few rows": Defect(plan(patch_size=[3, 32]), "write sides of at least 4"),
    "a batch of none": Defect(plan(batch_size=0), "batch_size 0"),
    "a parent that is missing": Defect(plan(inherits_from="1d"), "configuration 2d cannot be read"),
    "a parent of itself": Defect(plan(inherits_from="2d"), "configuration 2d cannot be read"),
    "a network that is unknown": Defect(
        plan(
            architecture={
                "network_class_name": "nnunet_gdla.networks.PVT",
                "arch_kwargs": {"strides": []},
                "_kw_requires_import": [],
            }
        ),
        "refuses 2d",
    ),
    "resampling that is unknown": Defect(plan(resampling_fn_probabilities="nearest"), "resampling_fn_probabilities:"),
    "a preprocessor that is unknown": Defect(plan(preprocessor_name="Mine"), "nnU-Net has no class Mine"),
    "normalisation of three channels": Defect(
        plan(normalization_schemes=["RGBTo01Normalization"] * 3), "normalization_schemes is"
    ),
    "another spacing than the data have": Defect(plan(spacing=[2.0, 2.0]), "these plans make 1 x 20 x 24"),
    "data of another configuration": Defect(
        plan(data_identifier="nnUNetPlans_2d_small"), "nothing was preprocessed for"
    ),
    "a configuration that inherits": Defect(
        plans(lambda content: content["configurations"].update(small={"inherits_from": "2d", "batch_size": 1})),
        READY,
        options={"configuration": "small"},
    ),
    "a configuration that is unknown": Defect(
        lambda place: None, "configuration 2D does not exist", options={"configuration": "2D"}
    ),
    "a trainer of another network": Defect(
        lambda place: None, "stands for decoder 'self'", options={"trainer": "nnUNetTrainerPVTSelfAttn"}
    ),
    # preprocessed cases
    "an image that is cut": Defect(cut(f"{PLANS}_2d/case_2.b2nd"), "case_2.b2nd:"),
    "a mask that is cut": Defect(cut(f"{PLANS}_2d/case_2_seg.b2nd"), "case_2_seg.b2nd:"),
    "an image that is empty": Defect(cut(f"{PLANS}_2d/case_2.b2nd", 0), "0 bytes, less than a header"),
    "cases in NumPy's format": Defect(as_numpy, READY),
    "a case in NumPy's format that is cut": Defect(both(as_numpy, cut(f"{PLANS}_2d/case_2.npz")), "case_2.npz:"),
    "cases in two formats": Defect(
        both(as_numpy, lambda place: (place.data / "case_1.b2nd").write_text("")), "refuses folders of mixed files"
    ),
    "an image with a hole": Defect(zeros_within("case_2.b2nd"), "damaged preprocessed file: case_2"),
    "properties that are cut": Defect(cut(f"{PLANS}_2d/case_2.pkl"), "case_2.pkl:"),
    "text for an image": Defect(
        lambda place: fresh(place.data / "case_2.b2nd").write_text("x" * 400), "it is no Blosc2 file"
    ),
    "no properties": Defect(remove(f"{PLANS}_2d/case_2.pkl"), "missing preprocessed file: case_2.pkl"),
    "no mask": Defect(remove(f"{PLANS}_2d/case_2_seg.b2nd"), "missing preprocessed file: case_2_seg.b2nd"),
    "no image": Defect(remove(f"{PLANS}_2d/case_2.b2nd"), "raw case without preprocessed data: case_2"),
    "no case": Defect(lambda place: [path.unlink() for path in place.data.iterdir()], "holds no case"),
    "a file of the file manager": Defect(lambda place: (place.data / ".DS_Store").write_text(""), ".DS_Store"),
    "a folder beside the cases": Defect(lambda place: (place.data / "old").mkdir(), READY),
    "an image of two channels": Defect(
        stored("case_2", lambda image: np.concatenate([image, image])), "channels of preprocessed case: case_2 has 2"
    ),
    "an image without slices": Defect(
        stored("case_2", lambda image: image[:, 0]), "shape of preprocessed case: case_2: image"
    ),
    "a mask of another size": Defect(
        stored("case_2_seg", lambda mask: mask[..., :-1]), "shape of preprocessed case: case_2: image"
    ),
    "image and mask of another size": Defect(
        both(stored("case_2", lambda image: image[..., :-1]), stored("case_2_seg", lambda mask: mask[..., :-1])),
        "these plans make 1 x 40 x 48",
    ),
    "NaN in an image": Defect(stored("case_2", put(np.nan)), "NaN/Inf in preprocessed case: case_2"),
    "a label that is unknown": Defect(stored("case_2_seg", put(7)), "case_2 holds 7"),
    "properties without places": Defect(
        pickled(lambda content: content.pop("class_locations")), "lacks class_locations"
    ),
    "places of other classes": Defect(
        pickled(lambda content: content["class_locations"].update({2: []})),
        "was made for 1, 2, dataset.json beside the plans has 1",
    ),
    "places outside of the image": Defect(
        pickled(lambda content: content["class_locations"].update({1: np.array([[0, 0, 90, 5]])})),
        "lie outside 1 x 40 x 48",
    ),
    "properties of another case": Defect(swapped, "where the mask has another", options={"full": True}),
    "properties without geometry": Defect(
        pickled(lambda content: content.pop("sitk_stuff")), "case_2.pkl lacks sitk_stuff", kind="nifti"
    ),
    "a crop of another size": Defect(
        pickled(lambda content: content.update(bbox_used_for_cropping=[[0, 1], [0, 9], [0, 9]])), "a crop of 1 x 9 x 9"
    ),
    # what lies beside them
    "no reference mask": Defect(remove("gt_segmentations/case_4.png"), "missing mask in gt_segmentations: case_4.png"),
    "a reference mask that is cut": Defect(
        cut("gt_segmentations/case_4.png"), "unreadable mask in gt_segmentations: case_4.png"
    ),
    "no fingerprint": Defect(remove("dataset_fingerprint.json"), "dataset_fingerprint.json"),
    "no dataset.json": Defect(remove("dataset.json"), "dataset.json"),
    "dataset.json of other labels": Defect(described(labels={"background": 0, "a": 1, "b": 2}), "dataset.json"),
    "dataset.json of another ending": Defect(described(file_ending=".tif"), "file_ending is '.tif'"),
    "dataset.json of other channels": Defect(described(channel_names={"0": "a", "1": "b"}), "normalization_schemes is"),
    # files for folders and folders for files
    "a file for the results' folder": Defect(as_file("results"), "is no folder; a training"),
    "a file for the model's folder": Defect(as_file("model"), "is no folder; a training"),
    "a file for the fold's folder": Defect(as_file("fold"), "fold_0 is no folder"),
    "a file for the validation's folder": Defect(as_file("fold", "validation"), "validation is no folder"),
    "a folder for a checkpoint": Defect(
        as_folder("fold", "checkpoint_latest.pth"),
        "checkpoint_latest.pth is a folder",
    ),
    "a folder for the curve": Defect(as_folder("fold", "progress.png"), "progress.png is a folder"),
    "a folder for the model's plans": Defect(
        as_folder("model", "plans.json"),
        "plans.json is a folder",
    ),
    "a folder for the splits": Defect(
        as_folder("preprocessed", "splits_final.json"), "splits_final.json cannot be read"
    ),
    "a folder for the plans": Defect(
        as_folder("preprocessed", f"{PLANS}.json"),
        "json is a folder",
    ),
    "a folder for dataset.json": Defect(as_folder("preprocessed", "dataset.json"), "dataset.json is a folder"),
    "a folder for the fingerprint": Defect(
        as_folder("preprocessed", "dataset_fingerprint.json"), "fingerprint.json is a folder"
    ),
    "a file for the reference masks": Defect(
        as_file("preprocessed", "gt_segmentations"), "missing mask in gt_segmentations"
    ),
    "a file for the cases": Defect(as_file("data"), "is a file, not a folder"),
    # checkpoints
    "an earlier training": Defect(checkpoint("checkpoint_latest.pth"), READY, warning="which a new one overwrites"),
    "a checkpoint": Defect(checkpoint("checkpoint_latest.pth"), READY, options=RESUME),
    "a checkpoint that is cut": Defect(cut_latest, "goes on from checkpoint_best.pth", options=RESUME),
    "a checkpoint with a damaged record": Defect(
        damaged_record, "does not have its checksum", options={**RESUME, "full": True}
    ),
    "only the best checkpoint": Defect(
        checkpoint("checkpoint_best.pth"), READY, warning="checkpoint_best.pth is the only one", options=RESUME
    ),
    "no checkpoint": Defect(lambda place: None, READY, warning="fold_0 holds none", options=RESUME),
    "a checkpoint of another trainer": Defect(
        checkpoint("checkpoint_latest.pth", lambda content: content.update(trainer_name="nnUNetTrainer")),
        "is of trainer nnUNetTrainer",
        options=RESUME,
    ),
    "a checkpoint of another fold": Defect(
        checkpoint("checkpoint_latest.pth", lambda content: content["init_args"].update(fold=3)),
        "is of fold 3",
        options=RESUME,
    ),
    "a checkpoint of more classes": Defect(
        checkpoint("checkpoint_latest.pth", more_classes), "other numbers of classes or channels", options=RESUME
    ),
    "a checkpoint without optimiser": Defect(
        checkpoint("checkpoint_latest.pth", lambda content: content.pop("optimizer_state")),
        "lacks optimizer_state",
        options=RESUME,
    ),
    "a checkpoint with NaN": Defect(
        both(checkpoint("checkpoint_latest.pth", not_finite), checkpoint("checkpoint_best.pth")),
        "diverged when it was saved move it away; nnU-Net then goes on",
        options=RESUME,
    ),
    "checkpoints with NaN alone": Defect(
        both(checkpoint("checkpoint_latest.pth", not_finite), checkpoint("checkpoint_best.pth", not_finite)),
        "with what is left beside it, and train again without --c",
        options=RESUME,
    ),
    "a checkpoint after epoch x": Defect(
        checkpoint("checkpoint_latest.pth", lambda content: content.update(current_epoch="x")),
        "has the current_epoch 'x', which is no number of epochs",
        options=RESUME,
    ),
    "weights alone": Defect(
        checkpoint(
            "checkpoint_final.pth",
            lambda content: [content.pop(key) for key in list(content) if key != "network_weights"],
        ),
        "it is no checkpoint of nnU-Net",
        options=RESUME,
    ),
}
