"""Fixtures of the planner's tests."""

from tests.plans.plan_command import dataset as dataset
from tests.plans.plan_command import quick_fingerprint as quick_fingerprint
from tests.trainers.nnunet_project import made_project as made_project
from tests.trainers.nnunet_project import project as project
