"""The settings of a training as typed dataclasses; `nnunet_gdla.mil.config` reads and writes them."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

__all__ = [
    "FEWEST_DRAWS",
    "Config",
    "DataConfig",
    "Found",
    "ModelConfig",
    "SplitConfig",
    "TrainConfig",
    "forget_unknown",
]


FEWEST_DRAWS: Final = 2  # one draw is not an interval


@dataclass
class DataConfig:
    """Which slides, and what is to be learned of them.

    Attributes:
        table: Cohort CSV; a relative path starts at the folder of the YAML file.
        features: Folder (or folders) of the H5 files.
        task: What is learned.
        slide: Column of slide names.
        patient: Column of patients; "tcga": the first 12 characters of the slide name; "slide": every slide is its own.
            None: the column patient_id if there is one, else as "slide".
        label: Column of the class (classification).
        time: Column of the follow-up time (survival).
        event: Column that says whether the event was seen (survival).
        site: Column of the hospital, for `split.scheme: site`.
        centre: Column of the centre, for `split.scheme: centre`.
        split: Column that holds train, val or test, for `split.scheme: file` without a file.
        sample_types: TCGA sample types to keep, such as ["01"]. None: all.
        event_map: What the entries of the event column mean, such as {alive: 0, dead: 1}.
        event_is_censoring: Whether 1 means censored in the event column. None: 1 is the event, and a column whose name
            says censored or alive is refused.
        label_map: New names of classes; several may get the same.
        feature_key: Which encoder, where a file holds several.
        stride: Distance of neighbouring patches in coordinate units. None: from each file.
        unit: Unit of the coordinates, where a file does not say.
        max_patches: Cap per slide, in coordinate order. None: all patches.
        sort_rows: "lattice" sorts the patches of a slide line by line along their lattice. None: as in the file.
        allow_isolated: Take slides whose patches hardly have neighbours.
        allow_missing: Leave out rows of the table whose file is not there, instead of stopping.
    """

    table: str
    features: str | list[str]
    task: Literal["classification", "survival"]
    slide: str = "slide_id"
    patient: str | None = None
    label: str = "label"
    time: str = "time"
    event: str = "event"
    site: str | None = None
    centre: str | None = None
    split: str | None = None
    sample_types: list[str] | None = None
    event_map: dict[str, int] | None = None
    event_is_censoring: bool | None = None
    label_map: dict[str, str] | None = None
    feature_key: str | None = None
    stride: float | None = None
    unit: Literal["px", "um", "cell"] | None = None
    max_patches: int | None = None
    sort_rows: Literal["lattice"] | None = None
    allow_isolated: bool = False
    allow_missing: bool = False


@dataclass
class SplitConfig:
    """Who trains, who selects the epoch, who is tested; always by patient.

    Attributes:
        scheme: How; "paper" is the seed hold-out of the publication, "file" is your own.
        rule: Which rule of "paper": survival, stratified, grouped, centre, provider; "auto" looks at the cohort.
        seed: Seed of the draw.
        folds: Number of folds ("kfold", "site").
        fold: Which fold (or centre) is the test set.
        centre: Name of the centre that is tested, for "centre".
        val_share: Share of all patients that selects the epoch.
        test_share: Share of all patients that is tested ("holdout"); 0: none.
        file: Table of your own split, for "file": slide_id and part (train, val, test), or CLAM's.
    """

    scheme: Literal["paper", "holdout", "kfold", "site", "centre", "file"] = "holdout"
    rule: Literal["auto", "survival", "stratified", "grouped", "centre", "provider"] = "auto"
    seed: int = 0
    folds: int = 5
    fold: int = 0
    centre: str | None = None
    val_share: float = 0.1
    test_share: float = 0.2
    file: str | None = None


@dataclass
class ModelConfig:
    """The network; None leaves a choice to the model. Entries of `extra` go to the model as they are.

    Attributes:
        name: slide_transformer, vit4, abmil, dsmil or transmil.
        attention: nystrom, softmax, linear, gdla or diff.
        correction: srp, xsa, none or fixed:<beta>.
        placement: Where the correction acts: post, pre-q, pre-k or pre-v.
        delta: Range of the gate.
        gate_hidden: Hidden width of the gate.
        width: Channels of a token.
        depth: Number of blocks.
        num_heads: Attention heads.
        num_landmarks: Landmarks of the Nystrom attention.
        window: Side of the neighbourhood in patches.
        drop_path_rate: Stochastic depth of the last block.
        extra: Any other argument of the model, by name.
    """

    name: str = "slide_transformer"
    attention: str | None = None
    correction: str | None = None
    placement: str | None = None
    delta: float | None = None
    gate_hidden: int | None = None
    width: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    num_landmarks: int | None = None
    window: int | None = None
    drop_path_rate: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `build_model`."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("name", "extra")}
        return {name: value for name, value in own.items() if value is not None} | self.extra


def forget_unknown(model: dict[str, Any], known: Collection[str]) -> list[str]:
    """Take out of a section `model` what was written for another model; entries of `extra` stay.

    Args:
        model: The section, changed in place.
        known: Settings of the model that is wanted now.

    Returns:
        Names of the settings that had a value.
    """
    names = [f.name for f in fields(ModelConfig) if f.name not in ("name", "extra") and f.name not in known]
    dropped = [name for name in names if model.get(name) is not None]
    for name in dropped:
        del model[name]
    return dropped


@dataclass
class TrainConfig:
    """How it is trained.

    Attributes:
        seed: Seed of the weights, the order of the slides and stochastic depth.
        epochs: Number of passes.
        accumulate: Slides per optimiser step.
        lr: Peak learning rate.
        gate_lr_scale: Factor on it for the parameters of gates (and learned coefficients); 1 as published.
        weight_decay: Weight decay of AdamW.
        decay_norms_and_biases: Decay norms and biases too, as published; biases of gates and learned scalars never.
        warmup_fraction: Share of the steps in which the learning rate rises; a cosine down to 0 follows.
        clip_norm: Largest norm of the gradient. None: no clipping.
        class_weights: "balanced", or one weight per class in the order of their names. None: all 1.
        sampling: "shuffle", or "balanced": classes (or event and censored) equally often.
        num_bins: Time bins of the survival model.
        c_index_ties: Pairs of equal times in the C-index, everywhere: "harrell" counts those with exactly one event;
            "strict", as published, none.
        select: Validation metric that chooses the epoch; "auto" is macro_f1 or c_index, "loss" the smallest loss.
        patience: Stop after so many epochs without a better one. None: never.
        precision: "auto" is bf16-mixed on CUDA, else 32-true.
        accelerator: "auto", "cpu", "gpu" or "mps".
        devices: Number of devices that train together.
        workers: Processes that read slides.
        grad_checkpointing: Rebuild activations in backward: half the memory, a third more time.
        tensorboard: Also write TensorBoard logs.
        bootstrap: Draws behind the 95 % intervals, 2 or more.
    """

    seed: int = 0
    epochs: int = 20
    accumulate: int = 16
    lr: float = 2e-4
    gate_lr_scale: float = 1.0
    weight_decay: float = 0.05
    decay_norms_and_biases: bool = False
    warmup_fraction: float = 0.05
    clip_norm: float | None = 1.0
    class_weights: Literal["balanced"] | list[float] | None = None
    sampling: Literal["shuffle", "balanced"] = "shuffle"
    num_bins: int = 4
    c_index_ties: Literal["harrell", "strict"] = "harrell"
    select: str = "auto"
    patience: int | None = None
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    devices: int = 1
    workers: int = 2
    grad_checkpointing: bool = True
    tensorboard: bool = False
    bootstrap: int = 1000


@dataclass
class Found:
    """What the data decided; written by `fit`. A second fit from the same file compares width and classes with it.

    Attributes:
        in_dim: Width of the features.
        classes: Names of the classes in the order of the outputs.
        bin_edges: Edges of the time bins, from training events.
        encoder: What made the features, where files say so.
    """

    in_dim: int
    classes: list[str] = field(default_factory=list)
    bin_edges: list[float] = field(default_factory=list)
    encoder: str | None = None


@dataclass
class Config:
    """All settings of a run."""

    data: DataConfig
    split: SplitConfig = field(default_factory=SplitConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    found: Found | None = None
