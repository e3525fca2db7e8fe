"""The names that others may import. To change this list is to change what users' code depends on."""

import importlib

import pytest

PUBLIC = {
    "nnunet_gdla.errors": ["Terminated", "TrainingStopped", "UserError", "WriteError", "install_excepthook"],
    "nnunet_gdla.ops": [
        "NeighbourGraph",
        "differential_attention",
        "differential_linear_attention",
        "elu_plus_one",
        "exclusive_projection",
        "forms",
        "gated_differential_attention",
        "grid_neighbours",
        "linear_attention",
        "local_homogeneity",
        "nearest_neighbours",
        "neighbourhood_mean",
        "nystrom_attention",
        "nystrom_attention_row",
        "redundancy_projection",
        "shuffled",
        "use_forms",
    ],
    "nnunet_gdla.layers": [
        "FixedSRP",
        "GatedSRP",
        "OutputSRP",
        "PPEG",
        "RedundancyGate",
        "AttentionBlock",
        "DifferentialAttention",
        "GDLABlock",
        "GatedDifferentialLinearAttention",
        "LinearAttention",
        "MixFFN",
        "Mlp",
        "SoftmaxAttention",
        "SwiGLU",
    ],
    "nnunet_gdla.networks": ["PVTGDLA"],
    "nnunet_gdla.networks.weights": [
        "WEIGHTS_VARIABLE",
        "convert_released_state_dict",
        "encoder_weights_advice",
        "fetch_encoder_weights",
        "find_encoder_weights",
        "load_encoder_weights",
    ],
    "nnunet_gdla.losses": ["BoundaryDoULoss"],
    "nnunet_gdla.evaluation": ["evaluate_folders", "evaluate_labels", "read_scheme", "surface_distances"],
    "nnunet_gdla.insight": ["ProductCount", "count_parameters", "count_products", "time_alternating"],
    "nnunet_gdla.mil": [
        "Slide",
        "SlideTransformer",
        "build_model",
        "concordance_index",
        "holdout_split",
        "infer_stride",
        "read_slide",
        "risk_score",
        "survival_nll",
        "time_bin_edges",
    ],
    "nnunet_gdla.plans": ["PLANNERS"],
    "nnunet_gdla.trainers": ["EXAMPLES", "RULE", "is_ours", "resolve"],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module: str) -> None:
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(PUBLIC[module])
    for name in imported.__all__:
        assert getattr(imported, name) is not None


@pytest.mark.parametrize("module", [name for name in PUBLIC if not name.endswith(("trainers", "plans", "errors"))])
def test_public_names_are_documented(module: str) -> None:
    imported = importlib.import_module(module)
    assert imported.__doc__
    undocumented = [name for name in imported.__all__ if not getattr(imported, name).__doc__]
    assert not undocumented
