import argparse
from pathlib import Path

import pytest

from tests.recipes.trees import Converted


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nnU-Net's folders, empty; the datasets go to `raw`."""
    for name in ("raw", "preprocessed"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"nnUNet_{name}", str(tmp_path / name))
    return tmp_path


@pytest.fixture
def run_convert(folders: Path) -> Converted:
    """`nnunet-gdla convert ...`, which returns the only dataset of nnUNet_raw."""

    from nnunet_gdla.commands import arguments_recipes, convert

    def run(*arguments: object) -> Path:
        parser = argparse.ArgumentParser()
        arguments_recipes.convert(parser)
        assert convert.run(parser.parse_args([str(argument) for argument in arguments])) == 0
        (dataset,) = (folder for folder in (folders / "raw").iterdir() if not folder.name.startswith("."))
        return dataset

    return run
