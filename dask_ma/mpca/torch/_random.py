"""Random numbers of torch that belong to a fit for a while."""

from __future__ import annotations

import torch


class RandomNumbers:
    """Has those of the processor and of a device start from a seed, until it is closed.

    All of the process draws from them.

    Parameters
    ----------
    device : torch.device
        Where the module is.
    seed : int
        At least 0.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        is_gpu = device.type == "cuda"
        self._fork = torch.random.fork_rng(devices=[device] if is_gpu else [])
        self._fork.__enter__()
        torch.default_generator.manual_seed(seed)
        if is_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)

    def close(self) -> None:
        """Have them go on as if nothing had been drawn; once."""
        self._fork.__exit__(None, None, None)
