"""Every `nnunet-gdla ...` that help, documentation and recipes show is a line that the parser takes."""

import pytest

from nnunet_gdla import cli
from nnunet_gdla.commands import recipe
from nnunet_gdla.recipes.catalogue import PAPER_TRAINER, RECIPES, PaperModel
from tests.shown_commands import help_texts, pages, shown_lines

PRINTED = ["\n".join(recipe._lines(each, 77, PaperModel(PAPER_TRAINER))) for each in RECIPES.values()]
LINES = shown_lines("nnunet-gdla", [*help_texts(cli._parser()), *pages(), *PRINTED])


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_shown_line_can_be_parsed(words: list[str]) -> None:
    assert cli._parser().parse_args(words).command == words[0]


def test_every_command_is_shown_with_its_arguments() -> None:
    assert {words[0] for words in LINES} == set(cli.COMMANDS)
