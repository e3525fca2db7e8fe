"""Files cut short anywhere: one check, and every command that reads images asks it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import tifffile
from PIL import Image

from nnunet_gdla.commands.case_check import CaseReport, check_case
from nnunet_gdla.commands.dataset_files import Case
from nnunet_gdla.commands.dataset_json import describe
from nnunet_gdla.commands.reading import find_reader, why_unreadable
from nnunet_gdla.cut_short import why_cut_short
from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.masks import read_mask
from nnunet_gdla.recipes.images import read_grey
from nnunet_gdla.recipes.layout import CaseProblem

PIXELS = np.random.default_rng(0).integers(0, 3, (6, 30, 40)).astype(np.uint8)


def itk(path: Path) -> None:
    sitk.WriteImage(sitk.GetImageFromArray(PIXELS), str(path))


def stack(path: Path) -> None:
    tifffile.imwrite(path, PIXELS, photometric="minisblack")


def packed_stack(path: Path) -> None:
    tifffile.imwrite(path, PIXELS, photometric="minisblack", compression="zlib", bigtiff=True)


def tiles(path: Path) -> None:
    tifffile.imwrite(path, PIXELS, photometric="minisblack", tile=(16, 16))


def big_endian(path: Path) -> None:
    tifffile.imwrite(path, PIXELS.astype(np.uint16), photometric="minisblack", byteorder=">", rowsperstrip=7)


def pages(path: Path) -> None:
    first, *others = map(Image.fromarray, PIXELS)
    first.save(path, format="TIFF", save_all=True, append_images=others)


def loose_pages(path: Path) -> None:
    with tifffile.TiffWriter(path) as file:
        for page in PIXELS:
            file.write(page, photometric="minisblack", contiguous=False)


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "gipl": (".gipl", itk),
    "nifti": (".nii", itk),
    "packed nifti": (".nii.gz", itk),
    "stack": (".tif", stack),
    "packed stack": (".tiff", packed_stack),
    "tiles": (".tif", tiles),
    "big-endian": (".tif", big_endian),
    "pages": (".tif", pages),
    "loose pages": (".tif", loose_pages),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_cut_is_seen_and_no_whole_file_is_refused(kind: str, tmp_path: Path) -> None:
    ending, write = WRITERS[kind]
    path = tmp_path / f"case{ending}"
    write(path)
    assert why_cut_short(path) is None
    whole = path.read_bytes()
    for kept in range(400, len(whole) - 8, len(whole) // 60):  # from NIfTI's header on: less of it has no magic word
        path.write_bytes(whole[:kept])
        why = why_cut_short(path)
        assert why is not None
        assert path.name not in why
        assert "\n" not in why


@pytest.mark.parametrize("kind", ["gipl", "pages", "loose pages", "stack"])
def test_every_reader_refuses_half_a_file(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ending, write = WRITERS[kind]
    path = tmp_path / f"case_0000{ending}"
    write(path)
    content = {"channel_names": {"0": "a"}, "labels": {"background": 0, "x": 1}, "numTraining": 1}
    description = describe(content | {"file_ending": ending})
    reader = find_reader(description.content, [path])
    assert reader is not None
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    assert why_unreadable(path, reader, is_label=True) == why_cut_short(path)
    report: CaseReport = check_case(Case("case", (path,), None), description, reader)
    assert [finding.title for finding in report.findings] == ["unreadable file"]
    with pytest.raises(UserError, match="cannot be read"):
        read_mask(path)
    assert capfd.readouterr().err == ""


def test_stacks_among_photographs_are_refused_whole_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    pages(path)
    with pytest.raises(CaseProblem, match=r"image\.png holds 6 images, not one"):
        read_grey(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with pytest.raises(CaseProblem, match=r"image\.png cannot be read: EOFError: the file ends"):
        read_grey(path)


def test_pages_that_nothing_holds_together_are_a_stack_or_no_mask(tmp_path: Path) -> None:
    path = tmp_path / "mask.tif"
    loose_pages(path)
    np.testing.assert_array_equal(read_mask(path).labels, PIXELS)
    with tifffile.TiffWriter(path) as file:
        for page in (PIXELS[0], PIXELS[1, :20]):
            file.write(page, photometric="minisblack", contiguous=False)
    with pytest.raises(UserError, match="holds 2 images of different kinds"):
        read_mask(path)


def test_pages_in_a_circle_end(tmp_path: Path) -> None:
    path = tmp_path / "mask.tif"
    tifffile.imwrite(path, PIXELS[0], photometric="minisblack", metadata=None)
    content = bytearray(path.read_bytes())
    place = int.from_bytes(content[4:8], "little")
    after = place + 2 + 12 * int.from_bytes(content[place : place + 2], "little")
    content[after : after + 4] = content[4:8]
    path.write_bytes(bytes(content))
    assert why_cut_short(path) == "ValueError: page 2 is an earlier page again"
