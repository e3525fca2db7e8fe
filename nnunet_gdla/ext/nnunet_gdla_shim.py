"""The one file of ours that nnU-Net's search for trainers imports; see `nnunet_gdla._register`.

It defines no class: nnU-Net imports this file under its bare name and forgets it again, and a class made here could not
be pickled. It answers for our names with classes that live in `nnunet_gdla.trainers`, and imports nothing for others.
"""

import os


def __getattr__(name: str) -> type:
    if name.startswith(("nnUNetTrainerGDLA", "nnUNetTrainerPVT")):
        from nnunet_gdla.errors import UserError, install_excepthook
        from nnunet_gdla.trainers.nnunet_gdla_naming import EXAMPLES, RULE, contradiction, is_ours, resolve

        if is_ours(name):
            trainer: type = resolve(name)
            return trainer
        if _is_only_folder():
            # It ends the search: nnU-Net's own message, which would follow, cannot know our rule.
            install_excepthook()
            raise UserError(
                f"nnunet-gdla has no trainer {name!r}: {contradiction(name)}names are {RULE}; such as "
                f"{', '.join(EXAMPLES)}"
            )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_only_folder() -> bool:
    """Whether nnU-Net searches no other folder, in which the name may be somebody else's class."""
    return sum(1 for folder in os.environ.get("nnUNet_extTrainer", "").split(os.pathsep) if folder) <= 1
