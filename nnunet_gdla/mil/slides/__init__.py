"""Slides as feature files: AtlasPatch, TRIDENT, CLAM, STAMP and wsinfer layouts."""

from nnunet_gdla.mil.slides.reader import read_slide as read_slide
from nnunet_gdla.mil.slides.slide import Slide as Slide
from nnunet_gdla.mil.slides.store import SlideStore as SlideStore
from nnunet_gdla.mil.slides.stride import infer_stride as infer_stride
from nnunet_gdla.mil.slides.subsample import cap_rows as cap_rows
from nnunet_gdla.mil.slides.subsample import random_rows as random_rows

__all__ = ["Slide", "SlideStore", "cap_rows", "infer_stride", "random_rows", "read_slide"]
