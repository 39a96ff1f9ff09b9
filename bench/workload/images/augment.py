"""Augmentation of images, and its random numbers. uint8 in, uint8 out; normalising is done later, on the device."""

import numpy as np
import torch
from torchvision.transforms import RandomResizedCrop, v2
from torchvision.transforms.v2.functional import resized_crop_image


def example_seeds(seed: int, draws: np.ndarray) -> np.ndarray:
    """A seed for each example's random stream: draws [B] int64 -> [B] uint32.

    A draw is epoch x length + index, so no two examples of a run share a seed, on any rank or worker, also after a
    resume. torch's CPU generator uses 32 bits of a seed, so the mixing is one-to-one in 32 bits: 64-bit mixes would
    often collide.
    """
    low, high = draws.astype(np.uint64).astype(np.uint32), (draws >> 32).astype(np.uint32)
    key = mix(np.array([seed & 0xFFFFFFFF, ~seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], dtype=np.uint32))
    return mix(mix(low ^ key[0]) ^ key[1] ^ key[2] ^ high)


def mix(x: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finaliser (Appleby 2011) on an array of uint32: one-to-one."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def random_part(image_size: int, image: torch.Tensor) -> torch.Tensor:
    """[3, H, W] -> [3, S, S]: a random part of 8 to 100 % of the area, mirrored or not. Bit-identical to
    v2.RandomResizedCrop(S) and v2.RandomHorizontalFlip(), whose overhead is as large as a small image's resize."""
    return cut(image_size, image, *random_box(*image.shape[-2:]))


def random_box(height: int, width: int) -> tuple[int, int, int, int, bool]:
    """Top, left, height, width, mirrored."""
    size_alone = torch.empty(1).expand(3, height, width)
    box = RandomResizedCrop.get_params(size_alone, scale=[0.08, 1.0], ratio=[3 / 4, 4 / 3])
    return (*box, bool(torch.rand(1) < 0.5))


def cut(
    image_size: int, image: torch.Tensor, top: int, left: int, height: int, width: int, mirrored: bool
) -> torch.Tensor:
    part = resized_crop_image(image, top, left, height, width, [image_size, image_size], antialias=True)
    return part.flip(-1) if mirrored else part


def middle(image_size: int, image: torch.Tensor) -> torch.Tensor:
    """[3, H, W] -> [3, S, S]: the short side resized to S x 256 / 224, then the middle."""
    image = v2.functional.resize(image, [image_size * 256 // 224], antialias=True)
    return v2.functional.center_crop(image, [image_size, image_size])


def crop_and_flip(
    images: torch.Tensor, padding: int, seeds: np.ndarray, flip: bool = True, fill: float = 0
) -> torch.Tensor:
    """Pad with ``fill``, then crop a random window of the old size, mirrored or not: images [B, C, H, W], seeds [B]
    uint32 -> [B, C, H, W]. The same distribution as v2.RandomCrop(padding=…) and, with flip, v2.RandomHorizontalFlip,
    for the whole batch: the places are digits of each example's seed."""
    height, width = images.shape[-2:]
    places = 2 * padding + 1
    seeds = torch.from_numpy(seeds.astype(np.int64))
    mirrored, top, left = seeds % 2, seeds // 2 % places, seeds // (2 * places) % places
    padded = torch.nn.functional.pad(images, [padding] * 4, value=fill)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, places, places, H, W], a view
    images = windows[torch.arange(len(images)), :, top, left]  # [B, C, H, W]
    return torch.where(mirrored.bool()[:, None, None, None], images.flip(-1), images) if flip else images
