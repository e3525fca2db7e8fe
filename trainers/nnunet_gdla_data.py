"""The preprocessed data that a training reads: are they there, and a mark that they are being read."""

from pathlib import Path

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_gdla.errors import UserError
from nnunet_gdla.in_use import hold

__all__ = ["claim_data"]


def claim_data(trainer: nnUNetTrainer) -> None:
    """Mark the trainer's data as read for as long as it exists, so that planning leaves them alone.

    Raises:
        UserError: If there are none.
    """
    folder = Path(str(trainer.preprocessed_dataset_folder))
    if not any(folder.glob("*.pkl")):
        plans = trainer.plans_manager
        raise UserError(
            f"the plans {plans.plans_name!r} name preprocessed data that are not there ({folder}): make them with "
            f"nnUNetv2_preprocess -d {int(plans.dataset_name[7:10])} -plans_name {plans.plans_name} "
            f"-c {trainer.configuration_name}"
        )
    hold(folder, trainer)
