"""The networks keep nnU-Net's contract of deep supervision, with each decoder and for square and long patches.

A stem that starts at 1/4 of the resolution has no natural output at 1/2: outputs and targets that disagree in size.
"""

import inspect
from typing import Any

import pytest
import torch
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

from nnunet_gdla.trainers import resolve
from tests.trainers.nnunet_project import Project, as_ours, make_trainer, small_plans

STEMS = {
    "gdla": "nnUNetTrainerGDLA",
    "linear": "nnUNetTrainerPVTLinearAttn",
    "self": "nnUNetTrainerPVTSelfAttn",
    "diff": "nnUNetTrainerPVTDiffAttn",
}
SMALL = [(96, 160), (64, 64)]
CASES = [
    *(pytest.param(decoder, patch) for decoder in STEMS for patch in SMALL),
    *(pytest.param(decoder, (512, 384), marks=pytest.mark.slow) for decoder in ("self", "diff")),  # N x N weights
    *(pytest.param(decoder, (512, 384)) for decoder in ("gdla", "linear")),
]


def plans_with(decoder: str, patch: tuple[int, int], project: Project) -> dict[str, Any]:
    return small_plans(project, patch, architecture=as_ours(encoder="pvt_v2_b0", decoder=decoder))


@pytest.mark.parametrize(("decoder", "patch"), CASES)
def test_the_contract(decoder: str, patch: tuple[int, int], project: Project) -> None:
    trainer = resolve(STEMS[decoder])
    assert "plans_manager" in inspect.signature(trainer.build_network_architecture).parameters
    manager = PlansManager(plans_with(decoder, patch, project))
    configuration = manager.get_configuration("2d")
    heads = manager.get_label_manager(project.dataset_json()).num_segmentation_heads
    on, off = (trainer.build_network_architecture(manager, configuration, 1, heads, deep) for deep in (True, False))
    assert on.state_dict().keys() == off.state_dict().keys()

    class Fake:
        enable_deep_supervision = True
        configuration_manager = configuration

    scales = trainer._get_deep_supervision_scales(Fake)
    wanted = [
        (2, heads, *(round(edge * factor) for edge, factor in zip(patch, scale, strict=True))) for scale in scales
    ]
    with torch.no_grad():
        outputs, one = on(torch.zeros(2, 1, *patch)), off(torch.zeros(2, 1, *patch))
    assert [tuple(output.shape) for output in outputs] == wanted
    assert tuple(one.shape) == (2, heads, *patch)
    # What -pretrained_weights may leave out, and nothing else depends on the number of classes.
    other = trainer.build_network_architecture(manager, configuration, 1, heads + 2, True).state_dict()
    differing = {name for name, value in on.state_dict().items() if other[name].shape != value.shape}
    assert differing == {name for name in other if ".seg_layers." in name}


@pytest.mark.parametrize("patch", SMALL)
@pytest.mark.parametrize("decoder", STEMS)
def test_the_switch_at_run_time(decoder: str, patch: tuple[int, int], project: Project) -> None:
    trainer = make_trainer(resolve(STEMS[decoder]), project, plans_with(decoder, patch, project))
    trainer.initialize()
    trainer.network.eval()
    x = torch.randn(1, 1, *patch)
    with torch.no_grad():
        first = trainer.network(x)[0]
        trainer.set_deep_supervision_enabled(False)
        alone = trainer.network(x)
        trainer.set_deep_supervision_enabled(True)
        assert len(trainer.network(x)) == 4
    torch.testing.assert_close(alone, first, rtol=0, atol=0)
