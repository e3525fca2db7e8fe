"""Which encoder made the features of a file, and whether two names mean the same one."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Final

import h5py

from nnunet_gdla.mil.slides.layouts import Layout, text

__all__ = ["common_encoder", "encoder_key", "encoder_of", "same_encoder"]

# Attributes of the features or of the file that name the encoder: TRIDENT's, STAMP's, and those of scripts.
ATTRIBUTES: Final = (
    *("encoder", "extractor", "encoder_name", "extractor_name", "patch_encoder", "patch_encoder_name"),
    *("feature_extractor", "feature_extractor_name", "feature_encoder", "backbone"),
)
NAMELESS: Final = frozenset({"", "none", "null", "unknown", "nan", "n/a", "na", "features", "feats"})
# Whoever published an encoder may stand in front of its name.
PUBLISHER: Final = re.compile(r"^(?:mahmoodlab|mahmood|bioptimus|paigeai|paige|owkin|prov)(?=[a-z])")
ALIASES: Final = {"uni2h": "uni2"}


def encoder_of(layout: Layout) -> str | None:
    """Return what made the features of a file; None where it does not say.

    It is the name of the data set in a group of several (AtlasPatch), else an attribute of the features, or of the
    file: `encoder` (TRIDENT), `extractor` (STAMP) and their like.
    """
    if layout.name == "atlaspatch":
        return layout.feature_key
    for attributes in (layout.features.attrs, layout.attributes):
        for name in ATTRIBUTES:
            value = attributes.get(name)
            word = "" if value is None or isinstance(value, h5py.Empty) else text(value).strip()
            if word.casefold() not in NAMELESS:
                return word
    return None


def encoder_key(name: str) -> str:
    """Return what names of encoders are compared by: `uni_v2`, `UNI2-h` and `hf-hub:MahmoodLab/UNI2-h` are the same.

    Letters' case, separators, the publisher, the v of a version, and version 1 (`uni_v1` is `uni`) make no difference.
    Numbers do: `uni` is not `uni_v2`.
    """
    plain = unicodedata.normalize("NFKC", name).casefold().strip().rpartition("/")[2].rpartition(":")[2]
    letters = PUBLISHER.sub("", re.sub(r"[\W_]+", "", plain))
    letters = re.sub(r"(?<=[a-z])v(?=\d)", "", re.sub(r"(?<=[a-z])v1$", "", letters))
    return ALIASES.get(letters, letters) or name


def same_encoder(a: str | None, b: str | None) -> bool:
    """Whether two files, or a file and a model, can be of one encoder; a missing name fits all."""
    return a is None or b is None or encoder_key(a) == encoder_key(b)


def common_encoder(names: Iterable[str | None]) -> str | None:
    """Return the encoder that most of the files name; None where none does."""
    named = [name for name in names if name is not None]
    return Counter(named).most_common(1)[0][0] if named else None
