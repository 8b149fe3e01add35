"""Partly's loss in a training loop of your own, in plain PyTorch.

    python examples/pytorch_loop.py

Only some positives are ticked. `observed` reads a blank as what it is, "not ticked"; beside it the
same network is trained with blanks taken for "no".
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from digits import load, report, share_ticked
from partly import losses

Loss = Callable[[Tensor, Tensor], Tensor]


def train(images: Tensor, labels: Tensor, loss_of: Loss, epochs: int = 10) -> nn.Module:
    """A small network trained on images [N, 1, 8, 16] and labels [N, 10] of 1, 0, -1 unknown."""
    torch.manual_seed(0)
    features = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64), nn.ReLU()]
    model = nn.Sequential(*features, nn.Linear(64, 10))
    model(images[:1])  # tells the lazy layer its size
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            loss = loss_of(model(images[rows]), labels[rows])  # logits: no sigmoid before it
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def main() -> None:
    images, labels, test, test_labels = load()
    observed = partial(losses.observed, c_positive=share_ticked(labels))
    for name, loss_of in (("blank is no", losses.an), ("blank is unknown", observed)):
        model = train(images, labels, loss_of)
        with torch.no_grad():
            report(name, model(test), test_labels)


if __name__ == "__main__":
    main()
