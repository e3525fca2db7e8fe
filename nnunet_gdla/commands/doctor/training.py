"""All that `nnUNetv2_train ID CONFIGURATION FOLD -tr ... -p ...` will read, in its order."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from nnunet_gdla.commands.dataset_check import RawDataset
from nnunet_gdla.commands.doctor.checkpoint import check_checkpoints, check_results
from nnunet_gdla.commands.doctor.prepared import check_beside, check_prepared
from nnunet_gdla.commands.doctor.sizes import check_outliers, check_patch
from nnunet_gdla.commands.doctor.splits import check_splits
from nnunet_gdla.commands.findings import BREAKAGES, Finding, Level, failed, one_line, run_check, warned
from nnunet_gdla.commands.plans_check import Planned, check_plans

__all__ = ["Training", "check_training"]

STOCK_PLANS = "nnUNetPlans"


@dataclass(frozen=True)
class Training:
    """What the user means to train.

    Args:
        plans: Name of the plans; None: the stock ones, if there are any.
        configuration: Name of the configuration, usually "2d".
        fold: A number, "all", or None for any.
        trainer: Name of the trainer.
        device: "cpu", "cuda" or "mps".
        resume: Whether the training is continued.
        full: Whether every value is looked at.
    """

    plans: str | None
    configuration: str
    fold: int | str | None
    trainer: str
    device: str
    resume: bool
    full: bool


def check_training(dataset: str, training: Training, raw: RawDataset | None) -> Iterator[Finding]:
    """Yield what a training would stumble over after the raw dataset.

    Args:
        dataset: Full name of the dataset.
        training: What is meant to be trained.
        raw: The raw dataset; None where it cannot be read, which has been reported.
    """
    plans = training.plans or STOCK_PLANS
    planned = yield from run_check(
        "plans",
        lambda: check_plans(
            dataset, plans, training.configuration, training.trainer, training.device, asked=training.plans is not None
        ),
    )
    if raw is not None:
        yield from run_check("image sizes", lambda: _check_sizes(planned, raw))
    if planned is None:
        return
    named = yield from _collect(_check_named(planned))
    yield from check_results(planned, training.fold, resume=training.resume)
    if raw is not None and not any(finding.level is Level.FAIL for finding in named):
        names = yield from run_check("preprocessed data", lambda: check_prepared(planned, raw, full=training.full))
        if names:
            yield from run_check("preprocessed data", lambda: check_beside(planned, raw, names))
            ending = raw.description.ending
            endings = (
                ending,
                f"_0000{ending}",
                "_0000",
                *(f".{end}" for end in ("png", "tif", "nii.gz", "b2nd", "npz")),
            )
            yield from check_splits(
                planned.folder, names, training.fold, raw_folder=raw.folder, endings=tuple(dict.fromkeys(endings))
            )
    if training.resume:
        yield from run_check("checkpoint", lambda: check_checkpoints(planned, training.fold, full=training.full))


def _collect(findings: Iterator[Finding]) -> Generator[Finding, None, list[Finding]]:
    found = list(findings)
    yield from found
    return found


def _check_sizes(planned: Planned | None, raw: RawDataset) -> Iterator[Finding]:
    yield from check_patch(planned, raw)
    yield from check_outliers(planned, raw)


def _check_named(planned: Planned) -> Iterator[Finding]:
    """Names in plans that nnU-Net looks up before, during or after a training."""
    manager, configuration, plans = planned.plans, planned.configuration, planned.plans_name
    title = f"plans {plans}"
    if manager.plans.get("dataset_name") != planned.folder.name:
        detail = f"dataset_name is {manager.plans.get('dataset_name')!r}: a training would read that dataset's data"
        yield failed(title, detail, f'write "dataset_name": "{planned.folder.name}"')
    if manager.plans.get("plans_name") != plans:
        detail = f"plans_name is {manager.plans.get('plans_name')!r}, not the file's name: models go by the former"
        yield warned(title, detail, f'write "plans_name": "{plans}"')
    look_up: dict[str, Callable[[], object]] = {
        "image_reader_writer": lambda: manager.image_reader_writer_class,
        "preprocessor_name": lambda: _found(configuration.preprocessor_class, configuration.preprocessor_name),
        "resampling_fn_data": lambda: configuration.resampling_fn_data,
        "resampling_fn_seg": lambda: configuration.resampling_fn_seg,
        "resampling_fn_probabilities": lambda: configuration.resampling_fn_probabilities,
        "data_identifier": lambda: Path(configuration.data_identifier),
        "spacing": lambda: [float(edge) for edge in configuration.spacing],
        "batch_dice": lambda: configuration.batch_dice,
    }
    for key, look in look_up.items():
        try:
            look()
        except BREAKAGES as error:
            yield failed(title, f"{key}: {one_line(error)}", f"correct {key}, or plan again")
    axes = [sorted(manager.plans.get(key) or []) for key in ("transpose_forward", "transpose_backward")]
    if axes != [[0, 1, 2]] * 2 or any(
        manager.transpose_forward[manager.transpose_backward[axis]] != axis for axis in range(3)
    ):
        yield failed(title, "transpose_forward and transpose_backward do not undo each other", "plan again")
    channels = len(planned.dataset_json.get("modality", planned.dataset_json.get("channel_names", ())))
    for key in ("normalization_schemes", "use_mask_for_norm"):
        if len(configuration.configuration.get(key) or ()) != channels:
            detail = (
                f"{key} is {configuration.configuration.get(key)}, dataset.json beside them has {channels} channels"
            )
            yield failed(title, detail, "plan again, and preprocess")


def _found(found: object, name: str) -> None:
    if found is None:
        raise LookupError(f"nnU-Net has no class {name}")
