"""Partly's loss in a Lightning module, with mAP as the metric to watch.

    python examples/lightning_module.py

The divisor of the loss is the whole batch, so several devices that share a batch take equal steps.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import partly
from digits import load, report, share_ticked


class Tagger(lightning.LightningModule):
    """A multi-label classifier of pictures [B, 1, 8, 16]; labels [B, 10] of 1, 0, -1 unknown."""

    def __init__(self, c_positive: float, c_negative: float = 0.0) -> None:
        """c_positive, c_negative: the chance that a positive, a negative is annotated."""
        super().__init__()
        self.save_hyperparameters()
        features = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64), nn.ReLU()]
        self.network = nn.Sequential(*features, nn.Linear(64, 10))
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = partly.losses.observed(self(images), labels, **self.hparams)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        images, labels = batch
        self.seen.append((self(images).cpu(), labels.cpu()))

    def on_validation_epoch_end(self) -> None:
        """mAP is of all images at once: a mean over batches would be another number."""
        logits, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        self.log("mAP", partly.mean_average_precision(logits.numpy(), labels.numpy()))
        self.seen.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    images, labels, test, test_labels = load()
    tagger = Tagger(c_positive=share_ticked(labels))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=10, accelerator="cpu", enable_checkpointing=False, **quiet
    )
    trainer.fit(
        tagger,
        DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True),
        DataLoader(TensorDataset(test, test_labels), batch_size=256),
    )
    print(f"validation mAP {float(trainer.callback_metrics['mAP']):.3f}")
    with torch.no_grad():
        report("test", tagger.eval()(test), test_labels)


if __name__ == "__main__":
    main()
