"""Sentences made of foreign exceptions: the telling line, and the file's name no second time."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import nibabel
import pytest
import SimpleITK as sitk
from PIL import Image

from nnunet_gdla.commands.dataset_json import read_json
from nnunet_gdla.commands.findings import Finding
from nnunet_gdla.commands.plan_fingerprint import ensure_fingerprint
from nnunet_gdla.commands.weights_dataset import find_target
from nnunet_gdla.damage import DAMAGE, reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.files import read_json_object
from nnunet_gdla.image_errors import IMAGE_DAMAGE
from nnunet_gdla.networks.released_layout import Layout

READERS: dict[str, Callable[[Path], object]] = {
    "bytes": Path.read_bytes,
    "nibabel": nibabel.load,
    "pillow": Image.open,
    "simpleitk": lambda path: sitk.ReadImage(str(path)),
}


@pytest.mark.parametrize("content", [None, b"", b"rubbish" * 100])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["a b.nii.gz", "(case).nii", "x.png"])
def test_the_reason_names_no_file(name: str, reader: str, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    told = []
    with contextlib.suppress(*IMAGE_DAMAGE):
        try:
            READERS[reader](path)
        except IMAGE_DAMAGE as error:
            told.append(reason(error, path))
    assert reader == "bytes" or len(told) == 1
    for words in told:
        assert words.strip()
        assert "\n" not in words
        assert path.name not in words
        assert str(tmp_path) not in words


def test_what_stops_a_command_is_no_damage() -> None:
    assert not any(issubclass(kind, DAMAGE) for kind in (KeyboardInterrupt, GeneratorExit))


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff"])
def test_an_unreadable_json_file_is_named_once(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "Dataset004_Any"
    raw.mkdir()
    path = raw / "dataset.json"
    path.write_text(content, errors="surrogateescape")
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    found = read_json(path)
    assert isinstance(found, Finding)
    sentences = [found.detail]
    for read in (
        lambda: ensure_fingerprint(raw.name, 1),
        lambda: find_target(None, str(path), None, Layout(1, 2, {}, ())),
        lambda: read_json_object(path),
    ):
        with pytest.raises(UserError) as caught:
            read()
        sentences.append(str(caught.value))
    assert [sentence.count(path.name) for sentence in sentences] == [1] * 4
    assert [sentence.count(os.fspath(path)) for sentence in sentences] == [1] * 4


def test_a_json_file_without_permission_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "any.json"
    path.write_text("{}")

    def refuse(self: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    found = read_json(path)
    assert isinstance(found, Finding)
    with pytest.raises(UserError) as caught:
        read_json_object(path)
    for sentence in (found.detail, str(caught.value)):
        assert sentence.count(path.name) == 1
        assert "Permission denied" in sentence
        assert "Errno" not in sentence
