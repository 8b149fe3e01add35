"""What the fused losses share, whoever computes them."""

import torch
from torch import Tensor

Answer = tuple[Tensor, Tensor, Tensor | None]  # loss, gradient in the logits, pseudo-labels

# What pseudo-labels are kept as.
DTYPES = {"float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8}


def pack(values: Tensor, store: str) -> Tensor:
    """Pseudo-labels as they are kept. Steps of 1/255 cannot say "no number": that is ½ there."""
    if store != "uint8":
        return values.to(DTYPES[store])
    return (values.nan_to_num(0.5) * 255).round().to(torch.uint8)
