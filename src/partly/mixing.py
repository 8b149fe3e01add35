"""Mixed images: new known labels out of few.

What enters: a batch of inputs with their labels, on the device. What leaves: the batch with some
images mixed with others of it, the labels that a loss is to be taken on, and the `Mixture` that
tells a method what each image was made of.

    LogicMix    the mean of 2 or 3 images; a label is positive if any part has it, negative if
                every part is known not to have it, else unknown
    MixUp-PME   λ·first + (1-λ)·second, λ ~ U(½, 1) for the batch; the target is mixed too, where
                the label of the first is known; an unknown label of the second counts as ½

Half of the images are mixed (LogicMix), or half of the batches (MixUp-PME). A loss takes hard
labels. BCE is linear in its target, so the loss of a mixed target is the weighted sum of losses on
hard ones, which is how MixUp-PME combines with any loss here.

Letters: B images of a batch, L labels, M parts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from partly import draws
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN

MIXES = ("none", "logicmix", "mixup-pme")
SHARE = 0.5  # of the images of a batch that are mixed


@dataclass(frozen=True)
class Mixture:
    """What the images of a batch are made of.

    parts: [M, B] places within the batch, the first of them the image itself; shares: [M, B], 0
    where an image has no such part. any_of: a label holds if one part has it (else the parts'
    labels are averaged by their shares).
    """

    parts: Tensor
    shares: Tensor
    any_of: bool

    @property
    def untouched(self) -> Tensor:
        """[B, 1]: the images that are only themselves."""
        return (self.shares[0] == 1)[:, None]

    def inputs(self, inputs: Tensor) -> Tensor:
        """The mixed inputs."""
        shape = (-1, *[1] * (inputs.ndim - 1))
        mixed = inputs * self.shares[0].view(shape)
        for part, share in zip(self.parts[1:], self.shares[1:], strict=True):
            mixed = mixed + inputs[part] * share.view(shape)
        return mixed

    def beliefs(self, beliefs: Tensor, labels: Tensor) -> Tensor:
        """P(label) of the mixed images, from what is believed and known of their parts [B, L]."""
        own = torch.where(labels == UNKNOWN, beliefs, labels.float())
        if not self.any_of:
            return (own[self.parts] * self.shares[..., None]).sum(dim=0)
        absent = 1 - own[self.parts] * (self.shares > 0)[..., None]
        mixed = 1 - absent.prod(dim=0)
        return torch.where(self.untouched, beliefs, mixed)


# The weight of a loss, and the labels [B, L] to take it on.
Targets = list[tuple[float | Tensor, Tensor]]


def mix(
    kind: str, labels: Tensor, *, seed: int, epoch: int, rows: Tensor
) -> tuple[Mixture, Targets]:
    """Draw what is mixed with what, from (seed, epoch, row), and mix the labels."""

    def draw(column: int) -> Tensor:
        return draws.uniform(seed, draws.MIX, epoch, rows, rows.new_full((1,), column))

    place = torch.arange(len(rows), device=rows.device)
    others = [_another(draw(column), place) for column in (1, 2)]
    mixed = (draw(0) < SHARE) & (len(rows) > 1)
    return _MIXERS[kind](labels, place, others, mixed, draw(3))


def _another(draw: Tensor, place: Tensor) -> Tensor:
    """A place in the batch that is not one's own."""
    step = 1 + (draw * max(len(place) - 1, 1)).long()
    return (place + step) % len(place)


def _logicmix(
    labels: Tensor, place: Tensor, others: list[Tensor], mixed: Tensor, draw: Tensor
) -> tuple[Mixture, Targets]:
    three = mixed & (draw < 0.5) & (others[0] != others[1])
    count = 1 + mixed.float() + three.float()
    shares = torch.stack([torch.ones_like(count), mixed.float(), three.float()]) / count
    mixture = Mixture(torch.stack([place, *others]), shares, any_of=True)
    parts = labels[mixture.parts]
    takes_part = (shares > 0)[..., None]
    positive = ((parts == POSITIVE) & takes_part).any(dim=0)
    negative = ((parts == NEGATIVE) | ~takes_part).all(dim=0)
    combined = torch.full_like(labels, UNKNOWN)
    combined[negative], combined[positive] = NEGATIVE, POSITIVE
    return mixture, [(1.0, combined)]


def _mixup_pme(
    labels: Tensor, place: Tensor, others: list[Tensor], mixed: Tensor, draw: Tensor
) -> tuple[Mixture, Targets]:
    parts = torch.stack([place, others[0]])
    if not mixed[0]:
        alone = torch.tensor([[1.0], [0.0]], device=place.device).expand(2, len(place))
        return Mixture(parts, alone, any_of=False), [(1.0, labels)]
    share = ((1 + draw[0]) / 2).float()
    shares = torch.stack([share, 1 - share])[:, None].expand(2, len(place))
    second = labels[others[0]]
    targets: Targets = [(share, labels)]
    for guess in (POSITIVE, NEGATIVE):
        hard = torch.where(second == UNKNOWN, guess, second)
        targets.append(((1 - share) / 2, torch.where(labels == UNKNOWN, labels, hard)))
    return Mixture(parts, shares, any_of=False), targets


_MIXERS: dict[str, Callable[..., tuple[Mixture, Targets]]] = {
    "logicmix": _logicmix,
    "mixup-pme": _mixup_pme,
}
