"""What must hold for the slide transformer with every combination of attention, correction and placement."""

import json
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.slide_transformer import SlideTransformer
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours, shuffled
from tests.mil.slide_models import COMBINATIONS, IN_DIM, OUTPUTS, STRIDE, bag, slide_model
from tests.reference.compare import relative_error

combinations = pytest.mark.parametrize("options", COMBINATIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
GATED = [options for options in COMBINATIONS if options["correction"] == "srp"]
gated = pytest.mark.parametrize("options", GATED, ids=lambda o: "-".join(str(v) for v in o.values()))


@combinations
@torch.no_grad()
def test_padding_changes_nothing(options: dict[str, Any]) -> None:
    model = slide_model(**options)
    short, long = bag(11), bag(17)
    features = torch.cat([F.pad(short.features, (0, 0, 0, 6), value=torch.nan), long.features])
    coords = torch.cat([F.pad(short.coords, (0, 0, 0, 6)), long.coords])
    mask = torch.ones(2, 17, dtype=torch.bool)
    mask[0, 11:] = False
    alone = torch.cat([model(*part, STRIDE) for part in (short, long)])
    assert torch.equal(model(features, coords, STRIDE, mask=mask), alone)


@combinations
@torch.no_grad()
def test_a_mask_cuts_rows_out_anywhere(options: dict[str, Any]) -> None:
    model, (features, coords) = slide_model(**options), bag(19, batch=2)
    mask = torch.rand(2, 19, generator=torch.Generator().manual_seed(3)) < 0.6
    cut = [model(features[b : b + 1, keep], coords[b : b + 1, keep], STRIDE) for b, keep in enumerate(mask)]
    assert torch.equal(
        model(features.masked_fill(~mask[..., None], torch.nan), coords, STRIDE, mask=mask), torch.cat(cut)
    )


@torch.no_grad()
def test_a_mask_cuts_rows_out_of_a_graph_too() -> None:
    model, (features, coords) = slide_model(correction="srp"), bag(19)
    keep = torch.rand(1, 19, generator=torch.Generator().manual_seed(4)) < 0.6
    expected = model(features[:, keep[0]], coords[:, keep[0]], STRIDE)
    graph = grid_neighbours(coords[0], STRIDE)
    assert torch.equal(model(features, graph=graph, mask=keep), expected)
    batched = NeighbourGraph(*(part[None] for part in graph))
    assert torch.equal(model(features, graph=batched, mask=keep), expected)


@combinations
@torch.no_grad()
def test_a_batch_of_two_is_two_batches_of_one(options: dict[str, Any]) -> None:
    model, (features, coords) = slide_model(**options), bag(13, batch=2)
    alone = torch.cat([model(features[b : b + 1], coords[b : b + 1], STRIDE) for b in range(2)])
    assert relative_error(model(features, coords, STRIDE), alone) < 5e-6


@combinations
@torch.no_grad()
def test_the_class_row_alone_is_that_of_the_whole_block(options: dict[str, Any]) -> None:
    model, (features, coords) = slide_model(**options), bag(13)
    x, context = model._through_blocks(features, model._context(features, coords, STRIDE, None))
    block = model.blocks[-1]
    whole, alone = block(x, context), block(x, context, class_only=True)
    assert alone.shape == (1, 1, x.shape[-1])
    assert relative_error(alone, whole[:, :1]) < 5e-6


@combinations
def test_scores_are_one_finite_number_a_patch(options: dict[str, Any]) -> None:
    model, (features, coords) = slide_model(**options).train(), bag(13)
    scores = model.patch_scores(features, coords, STRIDE)
    assert scores.shape == (13,)
    assert torch.isfinite(scores).all()
    assert scores.std() > 0
    assert not scores.requires_grad
    assert model.training
    assert torch.equal(scores, model.patch_scores(features, coords, STRIDE)), "drop path is off"
    found = model.explain(features, coords, STRIDE)
    assert torch.equal(found.attention.mean(0), scores)
    blocks = [number for number, block in enumerate(model.blocks) if getattr(block.attention, "correction", None)]
    assert list(found.beta) == blocks
    assert all(beta.shape == (2, 13) for beta in found.beta.values())


@gated
@torch.no_grad()
def test_beta_is_what_the_gates_return(options: dict[str, Any]) -> None:
    model, (features, coords) = slide_model(**options), bag(13)
    seen: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, GatedSRP):
            module.gate.register_forward_hook(lambda *call: seen.append(call[2][0]))
    model(features, coords, STRIDE)
    for beta, expected in zip(model.explain(features, coords, STRIDE).beta.values(), seen, strict=False):
        assert torch.equal(beta, expected)


@pytest.mark.parametrize("attention", ["nystrom", "softmax", "linear"])
@torch.no_grad()
def test_the_attention_row_is_what_the_class_token_averages_with(
    attention: Literal["nystrom", "softmax", "linear"],
) -> None:
    layer = SlideAttention(16, 2, attention=attention, num_landmarks=4)
    nn.init.eye_(layer.out_proj.weight)
    nn.init.zeros_(layer.out_proj.bias)
    model, (features, _) = slide_model(correction="none"), bag(13)
    x, context = model._through_blocks(features, model._context(features, None, None, None))
    values = layer.qkv(x).chunk(3, -1)[2].unflatten(-1, (2, 8)).transpose(1, 2)
    expected = (layer.attention_row(x, context).unsqueeze(2) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x, context)[:, :1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "linear", "gdla"])
@pytest.mark.parametrize("correction", ["none", "srp"])
@torch.no_grad()
def test_row_order_does_not_matter_without_position(attention: str, correction: str) -> None:
    model, (features, coords) = slide_model(attention=attention, correction=correction, position=None), bag(23)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    moved = model(features[:, order], coords[:, order], STRIDE)
    assert relative_error(moved, model(features, coords, STRIDE)) < 1e-5
    scores = model.patch_scores(features, coords, STRIDE)[order]
    assert relative_error(model.patch_scores(features[:, order], coords[:, order], STRIDE), scores) < 1e-5


@pytest.mark.parametrize("attention", ["nystrom", "softmax", "linear", "gdla", "diff"])
@torch.no_grad()
def test_any_number_of_patches_will_do(attention: str) -> None:
    model = slide_model(attention=attention, correction="none" if attention == "diff" else "srp")
    for patches in (*range(1, 41), 63, 64, 65, 257, 1025):
        features, coords = bag(patches)
        assert torch.isfinite(model(features, coords, STRIDE)).all(), patches
        assert model.patch_scores(features, coords, STRIDE).shape == (patches,)


@gated
@torch.no_grad()
def test_a_new_gated_model_is_the_plain_one_bit_for_bit(options: dict[str, Any]) -> None:
    model = slide_model(stirred=False, **options)
    plain = slide_model(stirred=False, **(options | {"correction": "none", "placement": "post"}))
    ours, theirs = model.state_dict(), plain.state_dict()
    assert {name for name in ours if ".gate." not in name} == set(theirs)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    for patches in (1, 13, 16):
        features, coords = bag(patches)
        assert torch.equal(model(features, coords, STRIDE), plain(features, coords, STRIDE))


@torch.no_grad()
def test_evaluation_twice_gives_the_same() -> None:
    model, (features, coords) = slide_model(drop_path_rate=0.5), bag(13)
    assert torch.equal(model(features, coords, STRIDE), model(features, coords, STRIDE))


@gated
@torch.no_grad()
def test_another_graph_changes_the_result(options: dict[str, Any]) -> None:
    model, (features, coords) = slide_model(**options), bag(23)
    graph = grid_neighbours(coords, STRIDE, **model.window)
    logits = model(features, graph=graph)
    assert torch.equal(logits, model(features, coords, STRIDE))
    assert not torch.equal(logits, model(features, graph=shuffled(graph, seed=1)))
    shared = NeighbourGraph(*(part[0] for part in graph))
    assert torch.equal(logits, model(features, graph=shared))


def test_parameter_counts_are_those_of_the_specification() -> None:
    def count(**options: Any) -> int:  # noqa: ANN401
        return sum(p.numel() for p in SlideTransformer(1536, 4, **options).parameters())

    plain = count(correction="none")
    assert plain == count(correction="xsa") == count(correction="fixed:1") == 7_723_780
    assert count(attention="diff", correction="none") == 7_719_172
    assert [count(gate_hidden=hidden) - plain for hidden in (16, 32, 64, 128)] == [333, 573, 1053, 2013]


def test_options_survive_json() -> None:
    options = {"attention": "gdla", "correction": "fixed:1.5", "gate_options": {"bound": "atan"}, "window": 5}
    assert isinstance(SlideTransformer(IN_DIM, OUTPUTS, **json.loads(json.dumps(options))), SlideTransformer)


def test_models_know_whether_they_need_coordinates() -> None:
    assert slide_model(correction="srp").needs_coords
    assert slide_model(attention="gdla", correction="none", local_mixing="lattice").needs_coords
    plain = slide_model(correction="none")
    assert not plain.needs_coords
    assert torch.equal(plain(bag(9).features), plain(*bag(9), STRIDE))


def test_one_block_has_no_gate_and_no_position() -> None:
    model = slide_model(depth=1).train()
    model(*bag(9), STRIDE).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
