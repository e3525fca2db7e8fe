import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy_gate import RedundancyGate
from nnunet_gdla.mil.gates import GATE_COLUMNS, GateRecord, GateRecorder, gate_statistics, summarise_gates
from tests.srp_golden import SrpFile, srp_params

NAMES = {
    "mean": "mean",
    "std": "std",
    "min": "min",
    "max": "max",
    "anti": "frac_anti",
    "identity": "frac_identity",
    "projection": "frac_projection",
    "reflection": "frac_reflection",
    "cosine": "mean_cos",
    "corr_h": "corr_h",
}


@pytest.mark.parametrize("golden", srp_params("gate_summary"))
def test_statistics_equal_the_golden_summary(golden: SrpFile) -> None:
    tensors = golden.tensors
    found = gate_statistics(tensors["beta"].squeeze(-1), tensors["cos"], tensors["h_local"])
    assert set(found) == set(NAMES)
    for ours, theirs in NAMES.items():
        expected = tensors[f"out.{theirs}"]
        error = (found[ours] - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
        assert error <= 5e-6, (ours, float(error))


def test_borders_of_the_regimes() -> None:
    beta = torch.tensor([-0.5, -0.4999, 0.4999, 0.5, 1.5, 1.5001]).reshape(1, 1, 6)
    found = gate_statistics(beta, torch.zeros(1, 1, 6), torch.zeros(1, 6))
    assert [round(float(found[name]) * 6) for name in ("anti", "identity", "projection", "reflection")] == [1, 2, 2, 1]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 1), (1, 2, 5)])
def test_one_patch_and_constant_gates_are_finite(shape: tuple[int, ...]) -> None:
    found = gate_statistics(torch.zeros(shape), torch.zeros(shape), torch.rand(shape[0], shape[2]))
    assert all(value.isfinite().all() for value in found.values())
    assert (found["corr_h"] == 0).all()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"gate": RedundancyGate(2, hidden=4, init="xavier")}) for _ in "ab")

    def forward(self, homogeneity: Tensor, count: Tensor, y: Tensor, r_hat: Tensor) -> tuple[Tensor, Tensor]:
        first = self.blocks[0]["gate"](homogeneity, count, y, r_hat)
        return first, self.blocks[1]["gate"](homogeneity=homogeneity, count=count, y=y, r_hat=r_hat)


def bag(patches: int, slides: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, r_hat = torch.randn(2, slides, 2, patches, 3)
    return (
        torch.rand(slides, patches),
        torch.randint(0, 9, (slides, patches)),
        y,
        r_hat / r_hat.norm(dim=-1, keepdim=True),
    )


def test_recorder_averages_slides_and_leaves_the_model_alone() -> None:
    model, slides = Blocks(), [bag(5), bag(40), bag(7, slides=2)]
    with GateRecorder(model) as recorder:
        betas = [model(*slide) for slide in slides]
    model(*slides[0])  # after the context: not recorded
    rows = recorder.rows(4)
    assert [(row["epoch"], row["block"]) for row in rows] == [(4, 0), (4, 1)]
    assert all(tuple(row) == GATE_COLUMNS for row in rows)
    for block, row in enumerate(rows):
        each = torch.cat([beta[block].flatten(1).mean(1) for beta in betas])
        assert row["mean"] == pytest.approx(each.mean().item(), rel=1e-5)
        assert row["max"] == pytest.approx(max(beta[block].max().item() for beta in betas))
        assert sum(row[name] for name in ("anti", "identity", "projection", "reflection")) == pytest.approx(1)
    assert not any(module._forward_hooks for module in model.modules())
    recorder.clear()
    assert recorder.rows(0) == []


def test_hooks_leave_with_an_error_too() -> None:
    model = Blocks()
    with pytest.raises(RuntimeError, match="stop"), GateRecorder(model):
        raise RuntimeError("stop")
    assert not any(module._forward_hooks for module in model.modules())


def test_records_of_two_processes_are_joined() -> None:
    values = tuple(float(i) for i in range(10))
    ours, theirs = GateRecord(1, values), GateRecord(1, tuple(v + 2 for v in values))
    (row,) = summarise_gates([ours, theirs], 0)
    assert row["block"] == 1
    assert row["mean"] == 1
    assert (row["min"], row["max"]) == (2, 5)


def test_model_without_gates_gives_no_rows() -> None:
    with GateRecorder(nn.Linear(2, 2)) as recorder:
        pass
    assert recorder.rows(0) == []
