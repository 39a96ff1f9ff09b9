"""DECODE=cuda: JPEGs are decoded on the GPU, by nvJPEG through ``torchvision.io.decode_jpeg``.

A loader worker reads the files and chooses the part of each image, with the random numbers of the other road; a thread
of the training process decodes the next batch and cuts it while the GPU computes this one (``loader.FinishingLoader``).
The pixels are those of another decoder: close to, and not the same as on the CPU. What is no JPEG is decoded by the
worker.
"""

import io
from typing import NamedTuple

import numpy as np
import torch
import torchvision
from PIL import Image

from bench.config.sections import Data
from bench.errors import UserError
from bench.workload.images.decode import decode, quiet, size_of

NO_BOX = (0, 0, 0, 0, 0)  # the middle of the image
JPEG = b"\xff\xd8\xff"


class Encoded(NamedTuple):
    """A batch on its way: two tensors, however many images, for each is a file of shared memory.

    data: [bytes] uint8, the files one after the other; of an image that is no JPEG its pixels, as rows (H, W, 3).
    table: [B, 10] int64: index in the set, bytes, height, width, whether it is a JPEG; then top, left, height, width of
    the part that is taken (0 where it is the middle) and whether that is mirrored.
    """

    data: torch.Tensor
    table: torch.Tensor


def as_file(content: bytes) -> tuple[torch.Tensor, int, int, bool]:
    """A file's bytes -> what ``Encoded.data`` has of it, [bytes] uint8; the image's height and width; whether it is a
    JPEG. Raises Unreadable."""
    if content.startswith(JPEG):
        width, height = size_of(content)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8), height, width, True
    image = decode(content)
    return image.permute(1, 2, 0).reshape(-1), *image.shape[1:], False


def on_device(files: list[torch.Tensor], forms: list, device: torch.device) -> list[torch.Tensor]:
    """Files as ``Encoded`` has them, and (height, width, whether a JPEG) of each -> images [3, H, W] uint8 on the
    device. All JPEGs go in one call. Raises RuntimeError where one of them cannot be decoded."""
    jpegs = [file for file, (_, _, is_jpeg) in zip(files, forms, strict=True) if is_jpeg]
    found = iter(torchvision.io.decode_jpeg(jpegs, mode="RGB", device=device) if jpegs else ())
    return [
        next(found) if is_jpeg else file.view(height, width, 3).to(device, non_blocking=True).permute(2, 0, 1)
        for file, (height, width, is_jpeg) in zip(files, forms, strict=True)
    ]


def decodes_on(device: torch.device, config: Data) -> bool:
    """Whether this process decodes on its GPU. With DECODE=auto where that works, and nothing that is asked for speaks
    against it; raises UserError where DECODE=cuda does not."""
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
    """Why torchvision cannot decode JPEGs on a GPU; empty where it can: it is tried."""
    content = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(content, "JPEG")
    file, *form = as_file(content.getvalue())
    try:
        with quiet():
            (image,) = on_device([file], [form], device)
    except Exception as error:  # it was built without nvJPEG, or does not fit the driver, or has dropped its decoders
        return str(error).partition("\n")[0] or type(error).__name__
    return "" if tuple(image.shape) == (3, 16, 16) else f"16 x 16 pixels came back as {tuple(image.shape)}"
