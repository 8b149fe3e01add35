"""Losses: pure functions on (logits, labels), one card each in docs/losses.md.

paper       the paper's loss, equation by equation
entropy     bce, ign, an, wan, label smoothing, partial_bce, observed, consistent
focusing    focal, asl, csl, hill, splc, spa
unlabelled  epr, role, em, ll
fused       bce, asl, paper_loss and the loss of `partly` in one pass: import it by itself
"""

from partly.losses.entropy import (
    an,
    an_ls,
    bce,
    bce_ls,
    consistent,
    ign,
    observed,
    partial_bce,
    surprise,
    wan,
)
from partly.losses.focusing import asl, csl, focal, hill, spa, spa_probability, splc
from partly.losses.paper import balance, paper_loss, penalty
from partly.losses.unlabelled import em, epr, large_losses, ll, role

__all__ = [
    "an",
    "an_ls",
    "asl",
    "balance",
    "bce",
    "bce_ls",
    "consistent",
    "csl",
    "em",
    "epr",
    "focal",
    "hill",
    "ign",
    "large_losses",
    "ll",
    "observed",
    "paper_loss",
    "partial_bce",
    "penalty",
    "role",
    "spa",
    "spa_probability",
    "splc",
    "surprise",
    "wan",
]
