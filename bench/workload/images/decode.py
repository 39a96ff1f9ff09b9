"""From the bytes of an image file to pixels."""

import contextlib
import functools
import io
import warnings
from collections.abc import Iterator

import numpy as np
import torch
import torchvision
from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 100_000_000  # 0.3 GB as RGB; a photograph of a camera has 20 to 60 million
MOST_RATIO = 200  # of the sides: the short one of a long and narrow image is enlarged, and the long one with it
FORMATS = ("JPEG", "MPO", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF", "JPEG2000", "AVIF")  # PIL's names


class Unreadable(Exception):
    """These bytes are no whole image; the text says why."""


def decode(data: bytes) -> torch.Tensor:
    """The bytes of an image file -> [3, H, W] uint8, RGB, laid out in memory as rows of pixels (H, W, 3).

    torchvision first: on JPEGs a fifth faster than PIL up to the tensor, with the same pixels. What it cannot read
    (BMP, TIFF, PPM, …) goes to PIL. Transparency is dropped, 16 bits per channel become the upper 8, and an EXIF
    orientation is ignored, by both. Raises Unreadable. Call it under ``quiet``.
    """
    if not data:
        raise Unreadable("the file is empty")
    size_of(data)
    try:
        image = torchvision.io.decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), "RGB")
    except (RuntimeError, AttributeError):  # AttributeError: torchvision announces that it will drop its decoders
        image = decode_with_pil(data)
    if image.dtype == torch.uint16:
        image = (image.int() >> 8).byte()
    if image.ndim != 3:
        raise Unreadable("it is an animation")
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def decode_with_pil(data: bytes) -> torch.Tensor:
    """-> [3, H, W] uint8. Raises Unreadable."""
    try:
        image = opened(data)
        if image.mode.startswith("I;16"):  # convert would cut everything above 255
            grey = (np.array(image).astype(np.int32) >> 8).astype(np.uint8)
            return torch.from_numpy(grey).expand(3, -1, -1)
        if image.mode in ("I", "F"):
            raise Unreadable("its pixels are 32 bits deep")
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (MemoryError, Unreadable):
        raise
    except Exception as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> Unreadable:
    """PIL's error about a file as a reason. A damaged file can raise anything: OSError, SyntaxError, struct.error, …"""
    if isinstance(error, UnidentifiedImageError):
        return Unreadable("no type of image that is known here")
    return Unreadable(str(error).partition("\n")[0] or type(error).__name__)


def size_of(data: bytes) -> tuple[int, int]:
    """Width and height from an image file's header. Raises Unreadable, also for an image that is decoded nowhere here:
    a small file may hold one that is too large in memory. So a header that cannot be read is no leave to decode it."""
    try:
        with opened(data) as image:
            width, height, animated = *image.size, image.format == "GIF" and image.is_animated
    except Image.DecompressionBombError:  # far above the limit: PIL has one of its own
        raise Unreadable(f"it has more than {2 * Image.MAX_IMAGE_PIXELS / 1e6:.0f} million pixels, and at most "
                         f"{MOST_PIXELS / 1e6:g} million are read") from None  # fmt: skip
    except Exception as error:
        raise unreadable(error) from None
    if width * height > MOST_PIXELS:
        raise Unreadable(f"it has {width} × {height} pixels, and at most {MOST_PIXELS / 1e6:g} million are read")
    if max(width, height) > MOST_RATIO * min(width, height):
        raise Unreadable(f"it has {width} × {height} pixels, and no side may be more than {MOST_RATIO} times the other")
    if animated:
        raise Unreadable("it is an animation")
    return width, height


def opened(data: bytes) -> Image.Image:
    """An image whose header PIL has read; of the types of FORMATS alone: for others PIL runs a program (EPS)."""
    return Image.open(io.BytesIO(data), formats=formats())


@functools.cache
def formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings from the decoders: torchvision's announcement, odd metadata. Not for several threads at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
