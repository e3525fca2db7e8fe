"""A trainer is what its name says; tests/trainers/test_discovery.py has how nnU-Net finds it, and wrong names."""

import inspect
import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_gdla import trainers
from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.trainers import EXAMPLES, RULE, is_ours, resolve
from nnunet_gdla.trainers.nnunet_gdla_variants import DiceCE, NoMirroring
from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA
from nnunet_gdla.trainers.nnunet_trainer_gdla_paper import PaperTraining
from tests.trainers.nnunet_project import Project, make_trainer

DECODERS = {
    "nnUNetTrainerGDLA": "gdla",
    "nnUNetTrainerPVTLinearAttn": "linear",
    "nnUNetTrainerPVTSelfAttn": "self",
    "nnUNetTrainerPVTDiffAttn": "diff",
}
ENCODERS = {
    "": None,
    "_B0": "pvt_v2_b0",
    "_B1": "pvt_v2_b1",
    "_B3": "pvt_v2_b3",
    "_B4": "pvt_v2_b4",
    "_B5": "pvt_v2_b5",
}
EPOCHS = {"": 250, "_1epoch": 1, "_2epochs": 2, "_1000epochs": 1000}
TRAININGS = ("", "_DiceCE", "_NoMirroring", "_DiceCE_NoMirroring", "_Paper")
PARTS = list(itertools.product(DECODERS, ENCODERS, TRAININGS, EPOCHS))


def test_every_combination_is_a_trainer_of_its_own() -> None:
    found = {}
    for stem, encoder, training, epochs in PARTS:
        name = f"{stem}{encoder}{training}{epochs}"
        assert is_ours(name)
        trainer = found[name] = resolve(name)
        assert trainer is resolve(name) is getattr(trainers, name)
        assert trainer.__name__ == trainer.__qualname__ == name
        assert issubclass(trainer, nnUNetTrainerGDLA)
        assert issubclass(trainer, getattr(trainers, stem))
        assert (trainer.decoder, trainer.encoder) == (DECODERS[stem], ENCODERS[encoder])
        for part, kind in (("DiceCE", DiceCE), ("NoMirroring", NoMirroring), ("Paper", PaperTraining)):
            assert issubclass(trainer, kind) == (part in training)
        assert pickle.loads(pickle.dumps(trainer)) is trainer
        assert list(inspect.signature(trainer.__init__).parameters) == list(
            inspect.signature(nnUNetTrainer.__init__).parameters
        )
    assert len(set(found.values())) == len(PARTS) == 480


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("nnUNetTrainerGDLA_B2", "_B2"),
        ("nnUNetTrainerGDLA_DiceCE_B0", "order"),
        ("nnUNetTrainerGDLA_B0_B0", "twice"),
        ("nnUNetTrainerGDLA_DiceCE_DiceCE", "twice"),
        ("nnUNetTrainerGDLA_5epochs_5epochs", "twice"),
        ("nnUNetTrainerGDLA_nomirroring", "case"),
        ("nnunettrainergdla", "case"),
        ("nnUNetTrainerGDLA_-1epochs", "number"),
        ("nnUNetTrainerGDLA_1.5epochs", "number"),
        ("nnUNetTrainerGDLA_epochs", "number"),
        ("nnUNetTrainerGDLA_10epoch", "plural"),
        ("nnUNetTrainerGDLA__B0", "two underscores"),
        ("nnUNetTrainerGDLA_1\u0663epochs", "digits of another script"),
        ("nnUNetTrainer", "stock"),
        ("", "empty"),
    ],
)
def test_a_name_outside_the_rule_is_an_error_that_states_the_rule(name: str, missing: str) -> None:
    assert not is_ours(name), missing
    with pytest.raises(AttributeError) as caught:
        resolve(name)
    assert RULE in str(caught.value)
    assert repr(name) in str(caught.value)


def test_the_examples_follow_the_rule() -> None:
    assert len(EXAMPLES) == len(set(EXAMPLES))
    assert all(is_ours(name) for name in EXAMPLES)
    assert {resolve(name).decoder for name in EXAMPLES} == set(DECODERS.values())


@pytest.mark.slow
def test_a_trainer_unpickles_in_another_process(tmp_path: Path) -> None:
    name = "nnUNetTrainerPVTDiffAttn_B1_DiceCE_NoMirroring_3epochs"
    (tmp_path / "trainer.pkl").write_bytes(pickle.dumps(resolve(name)))
    code = f"import pickle, pathlib; t = pickle.loads(pathlib.Path({str(tmp_path / 'trainer.pkl')!r}).read_bytes()); "
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + "print(t.__name__, t.decoder, t.encoder)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [name, "diff", "pvt_v2_b1"]


@pytest.mark.parametrize("suffix", EPOCHS)
def test_the_epochs_of_the_name_count(suffix: str, project: Project) -> None:
    trainer = make_trainer(resolve(f"nnUNetTrainerGDLA_B0_NoMirroring{suffix}"), project)
    assert trainer.num_epochs == EPOCHS[suffix]
    assert trainer.output_folder_base.endswith(f"nnUNetTrainerGDLA_B0_NoMirroring{suffix}__nnUNetPlans__2d")
    assert set(trainer.my_init_kwargs) == {"plans", "configuration", "fold", "dataset_json", "device"}


@pytest.mark.parametrize("stem", DECODERS)
def test_the_network_is_the_one_of_the_name(stem: str, project: Project) -> None:
    trainer = make_trainer(resolve(f"{stem}_B0_DiceCE"), project)
    trainer.initialize()
    expected = PVTGDLA(1, 3, encoder="pvt_v2_b0", decoder=DECODERS[stem])  # type: ignore[arg-type]
    found = {name: tensor.shape for name, tensor in trainer.network.state_dict().items()}
    assert found == {name: tensor.shape for name, tensor in expected.state_dict().items()}
    assert [type(block.attention) for block in trainer.network.decoder.blocks] == [
        type(block.attention) for block in expected.decoder.blocks
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nnUNetTrainerGDLA_B0_1epoch", BoundaryDoULoss), ("nnUNetTrainerPVTLinearAttn_B0_DiceCE_1epoch", DC_and_CE_loss)],
)
def test_the_loss_is_the_one_of_the_name(name: str, kind: type, project: Project) -> None:
    trainer = make_trainer(resolve(name), project)
    trainer.initialize()
    assert type(trainer.loss.loss) is kind


@pytest.mark.parametrize(("suffix", "axes"), [("", (0, 1)), ("_NoMirroring", None)])
def test_mirroring_is_kept_with_the_checkpoint(suffix: str, axes: Any, project: Project, tmp_path: Path) -> None:  # noqa: ANN401
    trainer = make_trainer(resolve(f"nnUNetTrainerGDLA_B0{suffix}"), project)
    trainer.initialize()
    trainer.inference_allowed_mirroring_axes = "not asked yet"
    returned = trainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
    assert returned[3] == trainer.inference_allowed_mirroring_axes == axes
    stock = nnUNetTrainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size(trainer)
    assert repr(returned[:3]) == repr(stock[:3])

    trainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
    trainer.save_checkpoint(str(tmp_path / "checkpoint.pth"))
    other = make_trainer(resolve(f"nnUNetTrainerGDLA_B0{suffix}"), project)
    other.load_checkpoint(str(tmp_path / "checkpoint.pth"))
    assert other.inference_allowed_mirroring_axes == axes
    transforms = trainer.get_training_transforms(
        [64, 64], *returned[:1], None, returned[3], returned[1], use_mask_for_norm=[False]
    )
    assert ("Mirror" in repr([type(transform).__name__ for transform in transforms.transforms])) == (axes is not None)
