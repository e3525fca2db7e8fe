"""`nnunet-gdla efficiency` and the page that it fills."""

import argparse
import csv
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

from nnunet_gdla.commands import efficiency
from nnunet_gdla.commands.arguments_efficiency import DEFAULT_NETWORKS, DETAILS, NETWORKS
from nnunet_gdla.commands.arguments_efficiency import efficiency as add_arguments
from nnunet_gdla.errors import UserError
from tests.paths import ROOT

PAGE = ROOT / "docs" / "efficiency.md"


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def table(text: str) -> list[dict[str, str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    header, rule, *body = rows
    assert all(re.fullmatch("-+:?", cell) for cell in rule)
    return [dict(zip(header, cells, strict=True)) for cells in body]


def examples(text: str) -> list[list[str]]:
    lines = re.findall(r"^ *nnunet-gdla efficiency.*$", text, flags=re.MULTILINE)
    return [shlex.split(line)[2:] for line in lines]


def test_counts_and_times_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    out = tmp_path / "table.csv"
    options = ["--classes", "2", "--batch", "2", "--repeats", "2", "--threads", "1", "--training", "--out", str(out)]
    assert efficiency.run(parse("--sizes", "32", "40", "--networks", "gdla-b0", "nnunet", *options)) == 0
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    assert "Images of 1 channel, 2 classes." in printed
    assert "in batches of 2; median of 2 rounds in turn, 1 thread on the CPU" in printed
    rows = table(printed)
    assert [(row["size"], row["network"]) for row in rows] == [
        ("32", "gdla-b0"),
        ("32", "nnunet"),
        ("40", "gdla-b0"),
        ("40", "nnunet"),
    ]
    assert {row["forward / nnunet"] for row in rows[1::2]} == {"1.00"}
    assert {row["training / nnunet"] for row in rows[1::2]} == {"1.00"}
    with out.open(newline="") as file:
        written = list(csv.DictReader(file))
    for shown, full in zip(rows, written, strict=True):
        assert shown["network"] == full["network"]
        assert shown["multiply-adds (G)"] == f"{int(full['multiply_adds']) / 1e9:.2f}"
        kinds = (int(full[f"multiply_adds_{kind}"]) for kind in ("convolution", "linear", "attention"))
        assert sum(kinds) == int(full["multiply_adds"])
        for step in ("forward", "training"):
            low, middle, high = (float(full[f"{step}_seconds_{which}"]) for which in ("min", "median", "max"))
            assert 0 < low <= middle <= high
            assert shown[f"{step} / nnunet"] == f"{float(full[f'{step}_over_nnunet']):.2f}"
    assert list(tmp_path.iterdir()) == [out]


def test_counting_alone_needs_no_rival(capsys: pytest.CaptureFixture[str]) -> None:
    assert efficiency.run(parse("--sizes", "64", "64", "--networks", "gdla-b0", "--no-time")) == 0
    (row,) = table(capsys.readouterr().out)
    assert list(row) == ["size", "network", "parameters (M)", "multiply-adds (G)", "in attention products (G)"]


def test_times_without_the_rival_have_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.csv"
    options = ["--repeats", "1", "--clock", "cpu", "--out", str(out)]
    assert efficiency.run(parse("--sizes", "32", "--networks", "gdla-b0", *options)) == 0
    printed = capsys.readouterr().out
    assert "Multiply-adds and processor time of one image" in printed
    (row,) = table(printed)
    assert "forward (ms)" in row
    assert "forward / nnunet" not in row
    (written,) = csv.DictReader(out.read_text().splitlines())
    assert written["forward_over_nnunet"] == ""


def test_an_unknown_network_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("--networks", "gdla-b0", "unet")
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert "unet" in message
    assert all(name in message for name in NETWORKS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--sizes", "64", "16"], "--sizes 16 is too small for these networks: give 32 or more"),
        (["--batch", "0"], "--batch 0 makes no sense: give 1 or more"),
        (["--channels", "0"], "--channels 0"),
        (["--classes", "-1"], "--classes -1"),
        (["--repeats", "0"], "--repeats 0"),
        (["--threads", "0"], "--threads 0"),
        (["--no-time", "--training"], "--no-time and --training exclude each other"),
        (["--clock", "cpu", "--device", "cuda"], "--clock cpu does not see the work of --device cuda"),
        (["--out", "no/such/folder/table.csv"], "--out no/such/folder/table.csv is a folder or lies in none"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        efficiency.run(parse(*argv))


def test_a_device_that_is_not_there_is_refused() -> None:
    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(UserError, match=f"--device {missing} cannot be used here"):
        efficiency.run(parse("--device", missing))


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    (tmp_path / f".unfinished-{os.getpid()}-table.csv").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        efficiency.run(parse("--sizes", "32", "--networks", "nnunet", "--no-time", "--out", str(out)))
    assert not out.exists()


def test_every_example_means_what_it_says() -> None:
    parsed = [parse(*argv) for argv in examples(DETAILS)]
    assert [(one.sizes, one.networks) for one in parsed] == [
        ([224, 256, 512], list(DEFAULT_NETWORKS)),
        ([224], ["gdla-b0", "gdla-b2", "nnunet"]),
        ([256, 512], list(DEFAULT_NETWORKS)),
        ([224, 256, 512], list(DEFAULT_NETWORKS)),
        ([224, 256, 512], list(DEFAULT_NETWORKS)),
    ]
    assert parsed[1].training
    assert (parsed[2].channels, parsed[2].classes, parsed[2].no_time, parsed[2].out) == (3, 2, True, "table.csv")
    assert (parsed[3].threads, parsed[3].clock) == (1, "cpu")
    assert (parsed[4].device, parsed[4].batch, parsed[4].repeats) == ("cuda", 8, 50)


def test_the_page_has_the_commands_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(parse(*argv) for argv in examples(page))
    counted = ["size", "network", "parameters (M)", "multiply-adds (G)", "in attention products (G)"]
    shown = [tuple(row[column] for column in counted) for row in table(first_table(page)) if row["size"] == "224"]
    assert efficiency.run(parse("--sizes", "224", "--no-time")) == 0
    assert shown == [tuple(row[column] for column in counted) for row in table(capsys.readouterr().out)]


def first_table(page: str) -> str:
    found = re.search(r"^\| size \|.*?(?=^$)", page, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]
