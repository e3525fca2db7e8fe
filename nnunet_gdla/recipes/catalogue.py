"""What the paper (arXiv:2603.02727, section 7.1, and its released settings) says of each dataset.

Standard library only.
"""

from dataclasses import dataclass

from nnunet_gdla.paper_settings import PaperSettings

__all__ = [
    "PAPER_PLANS",
    "PAPER_TRAINER",
    "PATCH",
    "RECIPES",
    "SEED",
    "SOURCE_PLANS",
    "PaperModel",
    "Recipe",
]

PATCH = 224
SEED = 0  # of drawn splits
SOURCE_PLANS = "nnUNetGDLAPlans"
PAPER_PLANS = "nnUNetGDLAPaperPlans"
PAPER_TRAINER = "nnUNetTrainerGDLA_Paper"
_TRAINED = {  # decoder, and the paper's name of the model, by the beginning of a trainer's name
    "nnUNetTrainerGDLA": ("gdla", "PVT-GDLA"),
    "nnUNetTrainerPVTDiffAttn": ("diff", "DiffAttn"),
    "nnUNetTrainerPVTSelfAttn": ("self", "SelfAttn"),
    "nnUNetTrainerPVTLinearAttn": ("linear", "LinearAttn"),
}

_SYNAPSE_TRAIN = "0005 0006 0007 0009 0010 0021 0023 0024 0026 0027 0028 0030 0031 0033 0034 0037 0039 0040"
_SYNAPSE_TEST = "0008 0022 0038 0036 0032 0002 0029 0003 0001 0004 0025 0035"
_MODELS = ("PVT-GDLA", "DiffAttn", "SelfAttn", "LinearAttn", "EMCAD-B2")


@dataclass(frozen=True)
class Recipe:
    """One dataset of the paper.

    Args:
        name: What the command line calls it.
        title: What people call it; also the end of the dataset's folder name.
        dataset_id: Number in the printed commands unless the user names one.
        download: Pages to get it from.
        unpacked: What the unpacked download looks like.
        cases: Images (volumes, for `synapse` and `acdc` frames) of the whole release, to compare a copy with.
        epochs: The paper's, each of `iterations` steps.
        warmup: Epochs of them that warm up.
        batch: The paper's batch size.
        iterations: Steps in one of the paper's epochs.
        images: Training images in the paper's words.
        ratio: Parts of training, validation and test; None where the paper takes a published list.
        lists: Training and test cases of the published list.
        square: Whether the paper scales each image to a square of 224 before everything else, and scores it there.
        convention: Name of the metric convention that the paper's table follows.
        scores: Dice in percent from the paper's tables by model, the first one its own.
        score_details: More of them, in words.
        intensities: How the paper scales grey values, in words.
    """

    name: str
    title: str
    dataset_id: int
    download: tuple[str, ...]
    unpacked: str
    cases: int
    epochs: int
    warmup: int
    batch: int
    iterations: int
    images: str
    ratio: tuple[int, int, int] | None
    lists: tuple[tuple[str, ...], tuple[str, ...]] | None
    square: bool
    convention: str
    scores: tuple[tuple[str, float], ...]
    score_details: str
    intensities: str

    @property
    def steps(self) -> int:
        """Optimiser steps of the paper's training."""
        return self.epochs * self.iterations

    @property
    def settings(self) -> PaperSettings:
        """What trainers with `_Paper` read in the plans."""
        augmentation = "photographs" if self.square else "slices"
        return PaperSettings(self.name, self.epochs, self.warmup, self.iterations, augmentation)

    def folder_name(self, dataset_id: int) -> str:
        """Name of the nnU-Net dataset."""
        return f"Dataset{dataset_id:03d}_{self.title}"


@dataclass(frozen=True)
class PaperModel:
    """What a trainer's name stands for, and the plans that it needs.

    Args:
        trainer: Name of a trainer of ours with `_Paper`.
    """

    trainer: str

    @property
    def _parts(self) -> list[str]:
        return self.trainer.split("_")

    @property
    def decoder(self) -> str:
        """Its decoder as the network calls it."""
        return _TRAINED[self._parts[0]][0]

    @property
    def title(self) -> str:
        """What the paper's tables call it."""
        return _TRAINED[self._parts[0]][1]

    @property
    def size(self) -> str:
        """Encoder that the name fixes, such as "B0"; empty for the paper's own."""
        return next((part for part in self._parts[1:] if len(part) == 2 and part[0] == "B"), "")

    @property
    def source_plans(self) -> str:
        """Name of our planner's plans with this encoder."""
        return SOURCE_PLANS + (f"_{self.size}" if self.size else "")

    @property
    def plan_options(self) -> tuple[str, ...]:
        """Options of `nnunet-gdla plan` that make these."""
        return ("-e", f"pvt_v2_{self.size.lower()}") if self.size else ()

    def plans(self, run: int = 1) -> str:
        """Name of the paper's plans of one of several runs, counted from 1.

        Runs differ in their seed, models in the network that they name; all read the same preprocessed data.
        """
        decoder = "" if self.decoder == "gdla" else self.decoder
        return "_".join(part for part in (PAPER_PLANS, self.size, decoder, f"run{run}" if run > 1 else "") if part)


def _scores(*values: float) -> tuple[tuple[str, float], ...]:
    return tuple(zip(_MODELS, values, strict=False))


_PHOTOGRAPH = "each image scaled from its own minimum and maximum to 0..1"

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="synapse",
            title="Synapse",
            dataset_id=501,
            download=(
                "https://www.synapse.org/#!Synapse:syn3193805 (BTCV, Abdomen/RawData.zip; needs an account)",
                "or the prepared copy that TransUNet's authors hand out: https://github.com/Beckschen/TransUNet",
            ),
            unpacked="RawData/Training/{img/img0001.nii.gz, label/label0001.nii.gz} ..., or train_npz, test_vol_h5",
            cases=30,
            epochs=200,
            warmup=10,
            batch=8,
            iterations=277,
            images="2211 slices of 18 cases",
            ratio=None,
            lists=(tuple(_SYNAPSE_TRAIN.split()), tuple(_SYNAPSE_TEST.split())),
            square=False,
            convention="transunet",
            scores=(),
            score_details="",
            intensities="Hounsfield units clipped to -125..275 and scaled to 0..1",
        ),
        Recipe(
            name="acdc",
            title="ACDC",
            dataset_id=502,
            download=("https://www.creatis.insa-lyon.fr/Challenge/acdc/databases.html (needs an account)",),
            unpacked="training/patient001/{Info.cfg, patient001_frame01.nii.gz, patient001_frame01_gt.nii.gz, ...}",
            cases=200,
            epochs=150,
            warmup=10,
            batch=16,
            iterations=82,
            images="about 1304 slices",
            ratio=(70, 10, 20),
            lists=None,
            square=False,
            convention="monai",
            scores=_scores(92.53, 92.20, 92.10, 91.77, 92.12),
            score_details="PVT-GDLA per class: RV 91.30, MYO 90.21, LV 96.07",
            intensities="each volume scaled from its own minimum and maximum to 0..1",
        ),
        Recipe(
            name="busi",
            title="BUSI",
            dataset_id=503,
            download=("https://scholar.cu.edu.eg/?q=afahmy/pages/dataset (Dataset_BUSI.zip)",),
            unpacked="Dataset_BUSI_with_GT/{benign,malignant,normal}/benign (1).png, benign (1)_mask.png, ...",
            cases=780,
            epochs=100,
            warmup=10,
            batch=16,
            iterations=39,
            images="624 of 780, normal ones included",
            ratio=(80, 10, 10),
            lists=None,
            square=True,
            convention="monai",
            scores=_scores(80.54, 79.84, 79.42, 79.14, 80.25),
            score_details="",
            intensities=_PHOTOGRAPH,
        ),
        Recipe(
            name="ham10000",
            title="HAM10000",
            dataset_id=504,
            download=("https://doi.org/10.7910/DVN/DBW86T (images part 1 and 2, segmentations, metadata)",),
            unpacked="HAM10000_images_part_1/ISIC_0024306.jpg, ..., HAM10000_segmentations_lesion_tschandl/..., "
            "HAM10000_metadata.csv",
            cases=10015,
            epochs=150,
            warmup=10,
            batch=16,
            iterations=450,
            images="7200 in the released settings (about 72 / 18 / 10; the paper's text has 70 / 10 / 20)",
            ratio=(70, 10, 20),
            lists=None,
            square=True,
            convention="monai",
            scores=_scores(95.01, 94.73, 94.78, 94.68),
            score_details="",
            intensities=_PHOTOGRAPH,
        ),
        Recipe(
            name="ph2",
            title="PH2",
            dataset_id=505,
            download=("https://www.fc.up.pt/addi/ph2%20database.html",),
            unpacked="PH2 Dataset images/IMD002/{IMD002_Dermoscopic_Image/IMD002.bmp, IMD002_lesion/IMD002_lesion.bmp}",
            cases=200,
            epochs=100,
            warmup=5,
            batch=16,
            iterations=5,
            images="80",
            ratio=(80, 20, 100),
            lists=None,
            square=True,
            convention="monai",
            scores=_scores(95.59, 95.10, 95.08, 94.78),
            score_details="",
            intensities=_PHOTOGRAPH,
        ),
    )
}
