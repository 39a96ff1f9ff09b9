"""From the bytes of an image file to pixels: on the CPU, or with DECODE=cuda by nvJPEG on the GPU."""

import contextlib
import functools
import io
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torchvision
from PIL import Image, UnidentifiedImageError

from bench.config.sections import Data
from bench.errors import UserError

MOST_PIXELS = 100_000_000  # 0.3 GB as RGB; a photograph of a camera has 20 to 60 million
MOST_RATIO = 200  # of the sides: the short side is enlarged to the image size, and the long one with it
FORMATS = ("JPEG", "MPO", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF", "JPEG2000", "AVIF")  # PIL's names
NO_BOX = (0, 0, 0, 0, 0)  # the middle of the image
JPEG = b"\xff\xd8\xff"


class Unreadable(Exception):
    """These bytes are not a complete image; the text gives the reason."""


def decode(data: bytes) -> torch.Tensor:
    """The bytes of an image file -> [3, H, W] uint8, RGB, with memory layout (H, W, 3). Call it under ``quiet``.

    torchvision first: on JPEGs a fifth faster than PIL, with the same pixels. PIL reads the rest (BMP, TIFF, PPM, …).
    Both drop transparency, reduce 16 bits per channel to the upper 8 and ignore an EXIF orientation. Raises Unreadable.
    """
    if not data:
        raise Unreadable("the file is empty")
    size_of(data)
    try:
        image = torchvision.io.decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), "RGB")
    except (RuntimeError, AttributeError):  # AttributeError: torchvision plans to remove its decoders
        image = decode_with_pil(data)
    if image.dtype == torch.uint16:
        image = (image.int() >> 8).byte()
    if image.ndim != 3:
        raise Unreadable("it is an animation")
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def decode_with_pil(data: bytes) -> torch.Tensor:
    try:
        image = opened(data)
        if image.mode.startswith("I;16"):  # convert would clip everything above 255
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
    """PIL's error as a reason. A damaged file can raise any error: OSError, SyntaxError, struct.error, …"""
    if isinstance(error, UnidentifiedImageError):
        return Unreadable("unknown image type")
    return Unreadable(str(error).partition("\n")[0] or type(error).__name__)


def size_of(data: bytes) -> tuple[int, int]:
    """Width and height from the header. Raises Unreadable for an image that must not be decoded: a small file can
    contain an image too large for memory."""
    try:
        with opened(data) as image:
            width, height, animated = *image.size, image.format == "GIF" and image.is_animated
    except Image.DecompressionBombError:  # PIL's own limit, far above ours
        raise Unreadable(f"it has more than {2 * Image.MAX_IMAGE_PIXELS / 1e6:.0f} million pixels, but the limit is "
                         f"{MOST_PIXELS / 1e6:g} million") from None  # fmt: skip
    except Exception as error:
        raise unreadable(error) from None
    if width * height > MOST_PIXELS:
        raise Unreadable(f"it has {width} × {height} pixels, but the limit is {MOST_PIXELS / 1e6:g} million")
    if max(width, height) > MOST_RATIO * min(width, height):
        raise Unreadable(f"it has {width} × {height} pixels, but a side may be at most {MOST_RATIO} times the other")
    if animated:
        raise Unreadable("it is an animation")
    return width, height


def opened(data: bytes) -> Image.Image:
    """Open an image of one of FORMATS; for others PIL may run a program (EPS)."""
    return Image.open(io.BytesIO(data), formats=formats())


@functools.cache
def formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings from the decoders. Not for several threads at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Encoded(NamedTuple):
    """A batch from a loader worker to the GPU: two tensors for all images, because each tensor is a file of shared
    memory.

    data: [bytes] uint8, the files concatenated; for an image that is not a JPEG its pixels (H, W, 3).
    table: [B, 10] int64: index in the set, bytes, height, width, whether it is a JPEG; then top, left, height, width of
    the crop (0: the middle) and whether it is mirrored.
    """

    data: torch.Tensor
    table: torch.Tensor


def as_file(content: bytes) -> tuple[torch.Tensor, int, int, bool]:
    """A file's bytes -> its part of ``Encoded.data``, height, width, whether it is a JPEG. Raises Unreadable."""
    if content.startswith(JPEG):
        width, height = size_of(content)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8), height, width, True
    image = decode(content)
    return image.permute(1, 2, 0).reshape(-1), *image.shape[1:], False


def on_device(files: list[torch.Tensor], forms: list, device: torch.device) -> list[torch.Tensor]:
    """Files as in ``Encoded``, and (height, width, whether a JPEG) of each -> images [3, H, W] uint8 on the device.
    Raises RuntimeError where a JPEG cannot be decoded."""
    jpegs = [file for file, (_, _, is_jpeg) in zip(files, forms, strict=True) if is_jpeg]
    found = iter(torchvision.io.decode_jpeg(jpegs, mode="RGB", device=device) if jpegs else ())
    return [
        next(found) if is_jpeg else file.view(height, width, 3).to(device, non_blocking=True).permute(2, 0, 1)
        for file, (height, width, is_jpeg) in zip(files, forms, strict=True)
    ]


def decodes_on(device: torch.device, config: Data) -> bool:
    """Whether this process decodes on its GPU. Raises UserError if DECODE=cuda is not possible."""
    if config.decode == "cpu" or device.type != "cuda":
        return False
    if config.decode == "auto" and (config.skip_bad or config.in_memory):
        return False
    why = why_not(device)
    if why and config.decode == "cuda":
        raise UserError(
            f"DECODE=cuda: torchvision {torchvision.__version__} cannot decode here ({why}): use DECODE=cpu"
        )
    return not why


def why_not(device: torch.device) -> str:
    """Try to decode a JPEG on a GPU; the reason why torchvision cannot, or ""."""
    content = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(content, "JPEG")
    file, *form = as_file(content.getvalue())
    try:
        with quiet():
            (image,) = on_device([file], [form], device)
    except Exception as error:  # built without nvJPEG, does not fit the driver, or without decoders
        return str(error).partition("\n")[0] or type(error).__name__
    return "" if tuple(image.shape) == (3, 16, 16) else f"16 x 16 pixels came back as {tuple(image.shape)}"
