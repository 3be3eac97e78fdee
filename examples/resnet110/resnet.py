"""Residual networks for images of 32 x 32 pixels, and images of CIFAR-10 from files."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

PAD = 4  # black pixels on all sides before an image is cropped


class Block(nn.Module):
    """Two convolutions, and a short cut around them that has no parameters."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.stride = 1 if n_in == n_out else 2
        self.n_new = n_out - n_in
        self.first = nn.Conv2d(n_in, n_out, 3, self.stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(n_out)
        self.second = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(n_out)

    def forward(self, X):
        Z = F.relu(self.first_norm(self.first(X)))
        Z = self.second_norm(self.second(Z))
        step = self.stride
        X = F.pad(X[:, :, ::step, ::step], (0, 0, 0, 0, 0, self.n_new))
        return F.relu(Z + X)


class ResNet(nn.Module):
    """A network of ``6 n + 2`` layers: 20, 56 or 110, or 8 to try things out.

    The first third of them has `width` channels, the next twice as many, and so on.
    """

    def __init__(self, depth=110, n_classes=10, width=16):
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6 n + 2, as 8, 20 or 110, got {depth}")
        per_width = (depth - 2) // 6
        widths = [width, *(width * w for w in (1, 2, 4) for _ in range(per_width))]
        self.first = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        pairs = zip(widths[:-1], widths[1:], strict=True)
        self.blocks = nn.Sequential(*(Block(n_in, n_out) for n_in, n_out in pairs))
        self.last = nn.Linear(4 * width, n_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, X):
        Z = self.blocks(F.relu(self.norm(self.first(X))))
        return self.last(Z.mean((2, 3)))


class Centred:
    """The transform of images as they are: from bytes to values around 0."""

    def __init__(self, mean):
        self.mean = torch.tensor(mean, dtype=torch.float32).reshape(1, 3, 1, 1)

    def __call__(self, images):
        return (images.float() - self.mean) / 64


class Augmented(Centred):
    """The transform of images to train on: moved, cropped and flipped at random."""

    def __call__(self, images):
        n_images, size = len(images), images.shape[-1]
        padded = F.pad(images, (PAD,) * 4)
        down, right = torch.randint(2 * PAD + 1, (2, n_images))
        rows = (down[:, None] + torch.arange(size))[:, :, None]
        columns = right[:, None] + torch.arange(size)
        flipped = torch.rand(n_images) < 0.5
        columns = torch.where(flipped[:, None], columns.flip(1), columns)[:, None]
        number = torch.arange(n_images)[:, None, None]
        cropped = padded.permute(0, 2, 3, 1)[number, rows, columns]
        return super().__call__(cropped.permute(0, 3, 1, 2))


def load_images(folder=None):
    """Images of uint8 in the shape (n, 3, 32, 32), and labels, to train and to test.

    The folder has the binary files of CIFAR-10, ``data_batch_*.bin`` and
    ``test_batch.bin``, or ``train.npz`` and ``test.npz`` with X of shape
    (n, 32, 32, 3) and y. Without one it is ``cifar10_subset`` in the folder that the
    environment variable DASK_MA_DATA names.
    """
    if folder is None:
        folder = Path(os.environ["DASK_MA_DATA"]) / "cifar10_subset"
    folder = Path(folder)
    if (folder / "train.npz").exists():
        return *_from_npz(folder / "train.npz"), *_from_npz(folder / "test.npz")
    batches = sorted(folder.glob("data_batch_*.bin"))
    if not batches:
        raise FileNotFoundError(f"{folder} has neither data_batch_*.bin nor train.npz")
    return *_from_bytes(batches), *_from_bytes([folder / "test_batch.bin"])


def _from_npz(path):
    with np.load(path) as file:
        return np.ascontiguousarray(file["X"].transpose(0, 3, 1, 2)), file["y"]


def _from_bytes(paths):
    """A label and 3,072 pixels for each image, of red, green and blue."""
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    rows = rows.reshape(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(int)
