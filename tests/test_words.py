"""Counts in sentences."""

import re

import pytest

from nnunet_gdla.words import counted
from tests.paths import ROOT

SOURCES = [path for folder in ("nnunet_gdla", "trainers", "plans") for path in (ROOT / folder).rglob("*.py")]
NOUNS = (
    "axes|cases|channels|checkpoints|classes|components|entries|epochs|events|features|figures|files|folds|frames|groups|"
    "images|labels|masks|models|names|outputs|patches|patients|points|regions|rows|runs|slices|slides|threads|warnings"
)
# Counts that are never 1, each in its file: said of several only, or constants.
SEVERAL = {
    "cohort_steps.py": "{len(slides)} slides",
    "cohort_targets.py": "{len(numbers)} classes",
    "demo.py": "{len(rare)} rare patches",
    "heatmap.py": "{len(files)} slides",
    "splits.py": "{len(published[1])} test cases",
    "splits_paper.py": "{len(total)} classes",
}


@pytest.mark.parametrize(
    ("number", "noun", "plural", "words"),
    [
        (0, "case", "", "0 cases"),
        (1, "case", "", "1 case"),
        (2, "case", "", "2 cases"),
        (1200, "slide", "", "1,200 slides"),
        (1, "class", "classes", "1 class"),
        (3, "class", "classes", "3 classes"),
    ],
)
def test_nouns_follow_their_number(number: int, noun: str, plural: str, words: str) -> None:
    assert counted(number, noun, plural) == words


@pytest.mark.parametrize(
    "pattern",
    [rf"\{{len\([^{{}}]*\)\}} (?:[a-z]+ )?(?:{NOUNS})\b", r"\b(?:case|channel|event|model|patient|run|slide|GPU)\(s\)"],
)
def test_no_sentence_counts_without_looking(pattern: str) -> None:
    found = {(path.name, words) for path in SOURCES for words in re.findall(pattern, path.read_text(encoding="utf-8"))}
    assert found <= set(SEVERAL.items())
