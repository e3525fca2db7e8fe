"""Files and folders that are written whole or not at all, and the sentence where that cannot be."""

import errno
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from h5py import File as H5File
from PIL import Image
from safetensors.torch import save_file

from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.files import made_folder, replaced, replaced_folder, together, write_text
from nnunet_gdla.write_errors import no_room_error

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "quota", errno.EFBIG: "limit on the size of files"}
NUMBERS = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)


def stopping(error: Exception) -> Callable[[Path], None]:
    """A writer that fails in the middle of its file."""

    def write(path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    return write


@pytest.mark.parametrize("number", FULL)
@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(number: int, there: bool, tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.csv"
    if there:
        write_text(path, "old")
    with pytest.raises(WriteError) as caught:
        replaced(path, stopping(OSError(number, os.strerror(number))), option="--out")
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} cannot be written: ")
    assert FULL[number] in sentence
    assert sentence.endswith("or name another place with --out, then run the same command again")
    left = [each.relative_to(tmp_path).as_posix() for each in sorted(tmp_path.rglob("*"))]
    assert left == (["new", "new/table.csv"] if there else [])
    assert not there or path.read_text() == "old"


def test_a_write_error_passes_between_processes_and_takes_another_way_to_go_on() -> None:
    error = WriteError("x cannot be written: full", "free space", "again")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "x cannot be written: full; free space, then again"
    assert str(error.going_on("go on")) == "x cannot be written: full; free space, then go on"


@pytest.mark.parametrize(
    "error",
    [
        OSError(
            "Can't write data (file write failed: time = x, errno = 28, error message = 'No space left on device')"
        ),
        RuntimeError("I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ],
)
def test_libraries_that_put_it_into_words_of_their_own(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"a\.h5 cannot be written"):
        replaced(tmp_path / "a.h5", stopping(error))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyError("a fault"), ValueError("a fault"), OSError("what a library found")])
def test_a_fault_stays_one(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as caught:
        replaced(tmp_path / "a.csv", stopping(error))
    assert caught.value is error
    assert not list(tmp_path.iterdir())


def test_a_source_that_cannot_be_read_is_not_called_unwritable(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "from" / "source.png"))
    with pytest.raises(PermissionError):
        replaced(tmp_path / "to" / "a.png", stopping(error))


def test_a_folder_without_the_right_to_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for make in (
        lambda: write_text(tmp_path / "file" / "a.csv", "x"),
        lambda: replaced(tmp_path / "a.csv", stopping(OSError(errno.EROFS, os.strerror(errno.EROFS)))),
    ):
        with pytest.raises(WriteError, match=r"cannot be written: .*; look at the folder and its permissions"):
            make()


def test_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "results"

    def fail() -> None:
        with together(folder):
            write_text(folder / "metrics.csv", "1")
            replaced(folder / "figure.png", stopping(OSError(errno.ENOSPC, "No space left on device")))

    with pytest.raises(WriteError):
        fail()
    assert not folder.exists()
    with together(folder):
        write_text(folder / "metrics.csv", "1")
        write_text(folder / "figure.png", "2")
        assert not (folder / "metrics.csv").exists()
    assert sorted(each.name for each in folder.iterdir()) == ["figure.png", "metrics.csv"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with replaced_folder(folder) as unfinished:
        write_text(unfinished / "plans.json", "old")

    def fail() -> None:
        with replaced_folder(folder) as unfinished:
            write_text(unfinished / "plans.json", "new")
            stopping(OSError(errno.ENOSPC, "No space left on device"))(unfinished / "weights")

    with pytest.raises(WriteError, match="model cannot be written: the disk is full"):
        fail()
    assert [each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*")] == ["model", "model/plans.json"]
    assert (folder / "plans.json").read_text() == "old"


def test_made_folders_go_again_unless_they_hold_something(tmp_path: Path) -> None:
    def fail(*, keep: bool) -> None:
        with made_folder(tmp_path / "a" / "b"):
            if keep:
                (tmp_path / "a" / "kept").touch()
            raise UserError("unfit")

    for keep in (False, True):
        with pytest.raises(UserError):
            fail(keep=keep)
        assert (tmp_path / "a").exists() == keep


def test_what_holds_no_sign_of_a_full_disk_is_not_called_one() -> None:
    assert no_room_error(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) is None
    assert "/data/x cannot be written: the disk is full" in str(
        no_room_error(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    )


WRITERS: dict[str, Callable[[Path], object]] = {
    "torch": lambda path: torch.save({"w": torch.from_numpy(NUMBERS)}, path),
    "safetensors": lambda path: save_file({"w": torch.from_numpy(NUMBERS)}, path),
    "h5": lambda path: H5File(path, "w").create_dataset("features", data=NUMBERS),
    "png": lambda path: Image.fromarray(NUMBERS).save(path, format="PNG"),
    "text": lambda path: path.write_text("x" * 200_000),
}


def write_all(folder: Path) -> None:
    """In a process of its own: write everything under a limit on the size of files, print what is said."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    for name, write in WRITERS.items():
        try:
            replaced(folder / name, write)
        except WriteError as error:
            os.write(1, f"{error}\n".encode())


def test_real_writers_under_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from tests.test_files import write_all; write_all(Path({str(tmp_path)!r}))"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100)
    lines = [line for line in done.stdout.splitlines() if "cannot be written" in line]
    assert [line.split(" cannot")[0] for line in lines] == [str(tmp_path / name) for name in WRITERS], done.stderr
    assert all("a limit on the size of files is reached (File too large); raise the limit" in line for line in lines)
    assert not list(tmp_path.iterdir())
