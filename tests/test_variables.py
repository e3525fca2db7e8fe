"""Paths in variables with what a shell would have taken away."""

from pathlib import Path

import pytest

from nnunet_gdla import cli
from nnunet_gdla.commands.checks import check_folders
from nnunet_gdla.commands.findings import Level
from nnunet_gdla.errors import UserError
from nnunet_gdla.trainers.nnunet_gdla_pretrained import require_encoder_weights
from nnunet_gdla.variables import NNUNET_FOLDERS, path_mistake

VALUES = {
    '"{place}"': "quotes are",
    "'{place}'": "quotes are",
    " {place} ": "blanks are",
    "{place}\n": "blanks are",
    '" {place}"': "quotes and blanks are",
    "~/raw": "~ is",
    "$HOME/raw": "$ is",
    "'${{HOME}}/raw'": "quotes and $ are",
    '"~/raw"': "quotes and ~ are",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


@pytest.mark.parametrize("value", VALUES)
def test_what_a_shell_takes_away_is_named_with_the_right_export(value: str, place: Path) -> None:
    written = value.format(place=place)
    right = f"{VALUES[value]} part of its value {written!r}; export nnUNet_raw={place}"
    assert path_mistake("nnUNet_raw", written) == right


@pytest.mark.parametrize("value", ["/not/there", "relative/path", "", "/with'one quote", "/with blank/inside"])
def test_other_paths_are_taken_as_they_are(value: str, place: Path) -> None:
    assert path_mistake("nnUNet_raw", value) is None


def test_a_folder_that_is_really_called_so_is_no_mistake(place: Path) -> None:
    for name in ("~", "$HOME", "'quoted'"):
        (place / name).mkdir()
        assert path_mistake("nnUNet_raw", str(place / name)) is None
    assert path_mistake("nnUNet_raw", "$NOT_SET/raw") == (
        "$ is part of its value '$NOT_SET/raw'; export nnUNet_raw=\"$NOT_SET/raw\""
    )


@pytest.mark.parametrize("variable", NNUNET_FOLDERS)
@pytest.mark.parametrize("command", ["plan -d 4", "convert ph2 x -d 5", "recipe ph2", "weights show x"])
def test_every_command_with_folders_says_so_first(
    variable: str, command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NNUNET_FOLDERS:
        monkeypatch.setenv(name, str(place))
    monkeypatch.setenv(variable, "'~/raw'")
    assert cli.main(command.split()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{variable}: quotes and ~ are part of its value" in line
    assert line.endswith(f"export {variable}={place}")


def test_doctor_prints_the_right_export_and_makes_no_such_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NNUNET_FOLDERS:
        monkeypatch.setenv(name, f'"{place}"')
    for finding, name in zip(check_folders(), NNUNET_FOLDERS, strict=True):
        assert finding.level is Level.FAIL
        assert finding.fix == f"export {name}={place}"


def test_encoder_weights_in_quotes_are_named_by_the_trainer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNUNET_GDLA_ENCODER_WEIGHTS", "'~/raw/pvt.pth'")
    with pytest.raises(UserError, match=r"NNUNET_GDLA_ENCODER_WEIGHTS: quotes and ~ are part of its value .*pvt\.pth$"):
        require_encoder_weights("pvt_v2_b0", is_ddp=False, rank=0)
