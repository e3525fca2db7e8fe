"""Evaluation of masks: overlap and surface metrics, two conventions of counting, intervals and paired comparisons.

Needs neither nnU-Net nor torch.
"""

from nnunet_gdla.evaluation.cases import evaluate_labels as evaluate_labels
from nnunet_gdla.evaluation.classes import read_scheme as read_scheme
from nnunet_gdla.evaluation.run import evaluate_folders as evaluate_folders
from nnunet_gdla.evaluation.surface import surface_distances as surface_distances

__all__ = ["evaluate_folders", "evaluate_labels", "read_scheme", "surface_distances"]
