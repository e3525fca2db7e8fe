"""What the entries of an event column mean: 1 the event was seen, 0 the patient was censored, never the reverse."""

import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any, Final

import pandas as pd

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort_targets import class_order, entries, whole, with_lines
from nnunet_gdla.mil.remarks import Remarks
from nnunet_gdla.words import counted

__all__ = ["event_meaning", "many_events", "read_events", "says_censored"]

TRUTH: Final = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
# A share of patients with an event from which on the column may well be the other way round.
MANY_EVENTS: Final = 0.85
JUDGED_FROM: Final = 5

# Names whose 1 may mean that nothing was seen: censored, alive, event-free; or either, as vital_status, which some
# registries code 1 = dead and others 1 = alive. Compared with the letters of the name alone, without accents.
CENSORED: Final = re.compile(
    r"cens(?!us)|cnsr|zens|cenz|sensor|sensur|sansur|remission|vitst"
    r"|alive|living|vital|lebt|lebend|lebens|levend|levande|vivant|(?<!sur)viv[ao]|free|frei|libre|liber[oa]|ltfu|lostto"
    r"|withdr[ae]w|drop(?:ped)?out|(?<!obs)(?<!se)(?<!pro)cured|recovered|geheilt|gueri"
    r"|^(?:not?|non|without|ohne|nicht|keine?|sans|sin|senza)(?:event|dea|died|dece|relap|recur|progress|tod|ereig)"
)
# Clear in "survival_event", but not in "survival" or "survival_status".
SURVIVAL: Final = re.compile(r"surv(?!ey)|uberleb|survie|superviv|sobreviv|sopravv")
EVENT: Final = re.compile(r"event|ereignis|evenement|evento|death|dead|died|deceased")
CENSORED_WORDS: Final = (
    "删失",
    "刪失",
    "截尾",
    "打ち切り",
    "打切",
    "生存",
    "存活",
    "검열",
    "중도절단",
    "생존",
    "цензур",
    "жив",
)
# "uncensored", "not_censored": their 1 is the event.
NEGATED: Final = re.compile(r"(?:un|non|not|nicht|^no)(?:cens|zens|cenz)")
NOTHING_SEEN: Final = re.compile(
    r"(?:right)?(?:cens|zens|cenz)\w*|alive|living|survived|surviving|lebend|lebendig|lebt|vivante?|vivo|viva"
)
SEEN: Final = re.compile(
    r"dead|death|died|deceased|event|uncensored|notcensored|tot|gestorben|verstorben|decedee?|decedut[oa]|morte?"
    r"|fallecid[oa]|muert[oa]"
)


def says_censored(name: str) -> bool:
    """Whether the name of a column says, in any spelling, that its 1 may mean censored or alive."""
    letters = _letters(name)
    if letters in ("c", "cen", "ned") or any(word in unicodedata.normalize("NFC", name) for word in CENSORED_WORDS):
        return True
    if SURVIVAL.search(letters) and not EVENT.search(letters):
        return True
    return CENSORED.search(letters) is not None and NEGATED.search(letters) is None


def read_events(
    column: pd.Series, event_map: Mapping[Any, int] | None, *, censoring: bool | None = None, remarks: Remarks
) -> pd.Series:
    """Return 1 where the event was seen and 0 where the patient was censored.

    Args:
        column: Cells as text.
        event_map: What each entry means.
        censoring: Whether 1 (true, yes) means censored. None: not said, so a name that may mean it is refused.
        remarks: Where a reversed column is stated.

    Raises:
        UserError: If entries are neither 0/1, true/false nor yes/no and `event_map` does not say what they mean, or
            the column's name says censored or alive and nobody says what its 1 means.
    """
    wanted = event_meaning(event_map, censoring)
    values = column.map(whole).str.lower()
    unknown = sorted({cell for cell, value in zip(column, values, strict=True) if value not in wanted})
    if unknown:
        example = ", ".join(f"{name}: {_guess(name)}" for name in class_order(column)[:4])
        raise UserError(
            f"column {column.name} holds {with_lines(column, unknown)}: 0 (censored) and 1 (event) were expected; "
            f"say what it means by event_map, such as {{{example}}}"
        )
    events = values.map(wanted).astype("int64")
    if event_map is not None:
        if censoring:
            raise UserError("event_map says what the entries mean already: leave out event_is_censoring")
        return events
    if censoring is None and says_censored(str(column.name)):
        raise UserError(
            f"column {column.name}: its name says that 1 may mean censored or alive, not that the event was seen; set "
            "event_is_censoring (test: --event-is-censoring) to true if it does, to false if 1 is the event"
        )
    if censoring:
        remarks.notes.append(f"column {column.name}: 1 means censored (event_is_censoring), so 0 is read as the event")
    return events


def event_meaning(event_map: Mapping[Any, int] | None, censoring: bool | None) -> dict[str, int]:
    """Return 1 (event) or 0 (censored) for each entry, in small letters, that an event column may hold.

    Raises:
        UserError: If `event_map` gives something else than 0 or 1, or calls an entry such as Alive an event.
    """
    if event_map is not None:
        return _checked(event_map)
    return {entry: 1 - value if censoring else value for entry, value in TRUTH.items()}


def many_events(events: Collection[int], name: str, censoring: bool | None) -> str | None:
    """Return a remark where so many patients have an event that the column may mean the opposite."""
    share = sum(events) / len(events) if events else 0.0
    if share < MANY_EVENTS or len(events) < JUDGED_FROM or censoring is False:
        return None
    doubt = "0 means censored there" if censoring else "1 means censored there"
    setting = "false" if censoring else "true"
    return (
        f"{share:.0%} of {counted(len(events), 'patient')} have an event by column {name}, more than most "
        f"cohorts: if {doubt}, set event_is_censoring: {setting}"
    )


def _checked(event_map: Mapping[Any, int]) -> dict[str, int]:
    wanted = {name.lower(): int(value) for name, value in entries(event_map).items()}
    strange = sorted({value for value in wanted.values() if value not in (0, 1)})
    if strange:
        raise UserError(f"event_map must give 0 (censored) or 1 (event), not {', '.join(map(str, strange))}")
    reversed_names = [name for name, value in wanted.items() if value == 1 and _guess(name) == 0]
    if reversed_names:
        raise UserError(f"event_map gives {', '.join(reversed_names)} 1, which is the event; 0 is censored or alive")
    return wanted


def _guess(entry: str) -> int | str:
    """0, 1 or "?" for an entry that is a word, with or without a number in front as cBioPortal writes it."""
    letters = _letters(re.sub(r"^\s*\d+\s*[:=-]\s*", "", entry))
    return 0 if NOTHING_SEEN.fullmatch(letters) else 1 if SEEN.fullmatch(letters) else "?"


def _letters(text: str) -> str:
    """Lower case, without accents and whatever stands between letters."""
    plain = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    return re.sub(r"[\W\d_]+", "", plain.casefold())
