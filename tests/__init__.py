"""Tests; a package, so that `from tests.paths import ...` cannot find another distribution's top-level `tests`."""
