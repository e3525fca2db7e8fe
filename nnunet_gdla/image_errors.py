"""What the readers of images raise on a file that is damaged, cut short, or something else than its name says."""

from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError, HeaderTypeError, ImageDataError
from nibabel.wrapstruct import WrapStructError
from PIL.Image import DecompressionBombError

from nnunet_gdla.damage import DAMAGE

__all__ = ["IMAGE_DAMAGE"]

IMAGE_DAMAGE: tuple[type[Exception], ...] = (
    *DAMAGE,
    ImageFileError,
    HeaderDataError,
    HeaderTypeError,
    ImageDataError,
    WrapStructError,
    DecompressionBombError,
)
