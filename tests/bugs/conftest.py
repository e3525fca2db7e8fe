"""Fixtures of the tests that run nnU-Net in this process."""

from tests.trainers.nnunet_project import made_project as made_project
from tests.trainers.nnunet_project import project as project
