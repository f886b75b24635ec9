"""How fast training goes, and how fast it could."""

import time

import torch
from torch import nn

from language.model import GPT

# Dense bf16 tensor throughput in FLOP/s, from the vendors' data sheets; matched in this order.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


def flops_per_token(model: GPT) -> float:
    """Forward and backward, as in PaLM's appendix B (arXiv 2204.02311): 6 N + 12 L d T.

    N counts every parameter that multiplies a token (the tied matrix as the head, not the position embedding); the
    second term is attention's, whole though it is causal.
    """
    parameters = sum(p.numel() for p in model.parameters()) - model.transformer["wpe"].weight.numel()
    layers, width = len(model.transformer["h"]), model.transformer["wte"].weight.shape[1]
    return float(6.0 * parameters + 12.0 * layers * width * model.block_size)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s of a GPU in bfloat16, of its data sheet; None for others."""
    if device.type != "cuda" or precision != "bfloat16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


class NextTokenLoss(nn.Module):
    """The model's loss alone: a compiled graph then need not keep the logits."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of (B, T) tokens against the next ones."""
        loss: torch.Tensor = self.model(idx, targets)[1]
        return loss


class Pace:
    """Tokens a second since the last row, evaluations and checkpoints left out.

    Args:
        model: whose operations are counted.
        tokens_per_step: over all processes.
        device: of this process.
        precision: float32 or bfloat16.
        processes: how many devices train.
    """

    def __init__(self, model: GPT, tokens_per_step: int, device: torch.device, precision: str, processes: int) -> None:
        self.flops, self.tokens_per_step = flops_per_token(model), tokens_per_step
        self.peak, self.processes = peak_flops(device, precision), processes
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self.steps, self.began = 0, time.perf_counter()

    def read(self) -> dict[str, float]:
        """Tokens a second over all processes; where it is known what the devices could do, FLOP/s as a part of that."""
        rate = self.steps * self.tokens_per_step / (time.perf_counter() - self.began)
        numbers = {"tokens_per_second": round(rate, 1)}
        if self.peak is not None:
            numbers["mfu"] = round(rate * self.flops / (self.peak * self.processes), 4)
        return numbers
