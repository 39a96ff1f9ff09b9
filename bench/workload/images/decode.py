"""From the bytes of an image file to pixels."""

import contextlib
import io
import warnings
from collections.abc import Iterator

import numpy as np
import torch
import torchvision
from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 100_000_000  # 0.3 GB as RGB; a photograph of a camera has 20 to 60 million


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
    check_size(data)
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
    """The same through PIL: -> [3, H, W] uint8. Raises Unreadable."""
    try:
        image = Image.open(io.BytesIO(data))
        if image.mode.startswith("I;16"):  # convert would cut everything above 255
            grey = (np.array(image).astype(np.int32) >> 8).astype(np.uint8)
            return torch.from_numpy(grey).expand(3, -1, -1)
        if image.mode in ("I", "F"):
            raise Unreadable("its pixels are 32 bits deep")
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (MemoryError, Unreadable):
        raise
    except UnidentifiedImageError:
        raise Unreadable("no type of image that is known here") from None
    except Exception as error:  # a damaged file can raise anything: OSError, SyntaxError, struct.error, …
        raise Unreadable(str(error).partition("\n")[0] or type(error).__name__) from None


def size_of(data: bytes) -> tuple[int, int]:
    """Width and height from an image file's header. Raises Unreadable."""
    try:
        return Image.open(io.BytesIO(data)).size
    except Exception as error:
        raise Unreadable(str(error)) from None


def check_size(data: bytes) -> None:
    """Raise Unreadable for an image that would be too large in memory: a small file may hold one. A header that only
    torchvision can read says nothing here."""
    try:
        width, height = size_of(data)
    except Unreadable:
        return
    if width * height > MOST_PIXELS:
        raise Unreadable(f"it has {width} × {height} pixels, and at most {MOST_PIXELS / 1e6:g} million are read")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings from the decoders: torchvision's announcement, odd metadata. Not for several threads at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
