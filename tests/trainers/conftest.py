"""Fixtures of the trainers' tests."""

from tests.trainers.nnunet_project import made_project as made_project
from tests.trainers.nnunet_project import project as project
