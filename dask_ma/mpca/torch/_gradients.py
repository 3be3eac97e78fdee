"""Precision of the forward pass, and limits to gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepOptions:
    """What is done to a batch and its gradient, besides the step of the optimiser.

    Parameters
    ----------
    clip_norm : float or None, default=None
        Largest norm of the gradient.
    clip_value : float or None, default=None
        Largest size of its elements.
    precision : {"float32", "bf16", "fp16"}, default="float32"
        What the module computes in.
    microbatch_size : int or None, default=None
        Most rows that go through the module at once.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    precision: str = "float32"
    microbatch_size: int | None = None

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """Context manager for the forward pass and the loss."""
        dtype = _DTYPES.get(self.precision)
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler | None:
        """What keeps small gradients of fp16 from becoming 0; None for other types."""
        return torch.amp.GradScaler(device.type) if self.precision == "fp16" else None

    def parts(self, n_rows: int) -> list[slice]:
        """Rows of a batch that go through the module together, in parts of one size."""
        most = self.microbatch_size or n_rows
        n_parts = -(-n_rows // most)
        ends = [n_rows * part // n_parts for part in range(n_parts + 1)]
        return [slice(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    @property
    def clips(self) -> bool:
        """Whether gradients have a limit."""
        return self.clip_value is not None or self.clip_norm is not None

    def clip(self, gradient: torch.Tensor) -> None:
        """Shorten a gradient in place.

        Parameters
        ----------
        gradient : Tensor of shape (n_parameters,)
            Of all parameters, end to end.
        """
        if self.clip_value is not None:
            gradient.clamp_(-self.clip_value, self.clip_value)
        if self.clip_norm is not None:
            # As torch.nn.utils.clip_grad_norm_ has it.
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
