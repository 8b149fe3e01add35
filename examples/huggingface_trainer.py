"""Partly's loss in a Hugging Face Trainer: a subclass with `compute_loss`.

    python examples/huggingface_trainer.py

The model is a tiny vision transformer with random weights, so that nothing is downloaded. In its
place stands any model with logits [B, L], such as `AutoModelForImageClassification` or
`AutoModelForSequenceClassification` with `num_labels=L`.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EvalPrediction,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import partly
from digits import load, report, share_ticked


class PartialLabelTrainer(Trainer):
    """A Trainer for labels [B, L] of 1 positive, 0 negative, -1 unknown."""

    loss_is_scaled_for_ga = False  # a mean of each batch: the Trainer averages what it accumulates

    def __init__(self, *args: Any, c_positive: float, c_negative: float = 0.0, **more: Any) -> None:
        """c_positive, c_negative: the chance that a positive, a negative is annotated."""
        super().__init__(*args, **more)
        self.chances = {"c_positive": c_positive, "c_negative": c_negative}

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        """The model does not see the labels: its own loss knows no unknown ones."""
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = partly.losses.observed(outputs.logits, labels, **self.chances)
        return (loss, outputs) if return_outputs else loss


def mean_average_precision(found: EvalPrediction) -> dict[str, float]:
    return {"mAP": partly.mean_average_precision(found.predictions, found.label_ids)}


def rows(images: Tensor, labels: Tensor) -> list[dict[str, Tensor]]:
    pairs = zip(images, labels, strict=True)
    return [{"pixel_values": image, "labels": known} for image, known in pairs]


def main() -> None:
    images, labels, test, test_labels = load()
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    data = {"image_size": (8, 16), "patch_size": 8, "num_channels": 1, "num_labels": 10}
    model = ViTForImageClassification(ViTConfig(**size, **data, num_attention_heads=4))
    plan = {"num_train_epochs": 12, "per_device_train_batch_size": 64, "learning_rate": 2e-3}
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder:
        trainer = PartialLabelTrainer(
            model,
            TrainingArguments(folder, **plan, **quiet, use_cpu=True, remove_unused_columns=False),
            train_dataset=rows(images, labels),
            eval_dataset=rows(test, test_labels),
            compute_metrics=mean_average_precision,
            c_positive=share_ticked(labels),
        )
        trainer.train()
        print(f"validation mAP {trainer.evaluate()['eval_mAP']:.3f}")
        logits = trainer.predict(trainer.eval_dataset).predictions
    report("test", torch.from_numpy(logits), test_labels)


if __name__ == "__main__":
    main()
