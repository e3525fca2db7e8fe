"""Fixtures of the evaluation's tests."""

from tests.evaluation.command_line import work as work
