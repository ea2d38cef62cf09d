"""One-stage detection with anchors: focal loss, own NMS and mAP, warmup in optimizer_step."""

import argparse
import json
import math
import os
from collections import defaultdict
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ("square", "frame")


class ShapesDataset(Dataset):
    """Pictures with one to three shapes, kept as a file as annotations are."""

    def __init__(self, root, split):
        self.samples = torch.load(os.path.join(root, f"{split}.pt"))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, idx):
        sample = self.samples[idx]
        target = {key: sample[key] for key in ("boxes", "labels")}
        target["image_id"] = torch.tensor([idx])
        target["area"] = (target["boxes"][:, 2:] - target["boxes"][:, :2]).prod(1)
        return sample["image"], target


def draw_shapes(count, image_size, seed):
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        image = 0.1 * torch.randn(3, image_size, image_size, generator=generator)
        boxes, labels = [], []
        for _ in range(int(torch.randint(1, 4, (1,), generator=generator))):
            size = int(torch.randint(6, 11, (1,), generator=generator))
            x, y = torch.randint(0, image_size - size, (2,), generator=generator).tolist()
            label = int(torch.randint(0, len(CLASSES), (1,), generator=generator))
            image[label, y : y + size, x : x + size] += 1.0
            if label == 1:
                image[label, y + 2 : y + size - 2, x + 2 : x + size - 2] -= 1.0
            boxes.append([x, y, x + size, y + size])
            labels.append(label)
        samples.append(
            {"image": image, "boxes": torch.tensor(boxes).float(), "labels": torch.tensor(labels)}
        )
    return samples


def collate_fn(batch):
    images, targets = zip(*batch, strict=True)
    return torch.stack(images), list(targets)


class ShapesDataModule(L.LightningDataModule):
    def __init__(self, data_dir="data", batch_size=4, image_size=32, num_workers=0):
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self):
        os.makedirs(self.hparams.data_dir, exist_ok=True)
        for seed, (split, count) in enumerate({"train": 24, "val": 10, "test": 8}.items()):
            path = os.path.join(self.hparams.data_dir, f"{split}.pt")
            if not os.path.exists(path):
                torch.save(draw_shapes(count, self.hparams.image_size, seed), path)

    def setup(self, stage=None):
        if stage == "fit" or stage is None:
            self.train_set = ShapesDataset(self.hparams.data_dir, "train")
        if stage in ("fit", "validate", None):
            self.val_set = ShapesDataset(self.hparams.data_dir, "val")
        if stage == "test" or stage is None:
            self.test_set = ShapesDataset(self.hparams.data_dir, "test")

    def _loader(self, dataset, drop_last=False):
        return DataLoader(
            dataset,
            batch_size=self.hparams.batch_size,
            num_workers=self.hparams.num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
        )

    def train_dataloader(self):
        return self._loader(self.train_set, drop_last=True)

    def val_dataloader(self):
        return self._loader(self.val_set)

    def test_dataloader(self):
        return self._loader(self.test_set)


def box_iou(boxes1, boxes2):
    area1, area2 = ((b[:, 2:] - b[:, :2]).clamp(min=0).prod(1) for b in (boxes1, boxes2))
    lt = torch.max(boxes1[:, None, :2], boxes2[None, :, :2])
    rb = torch.min(boxes1[:, None, 2:], boxes2[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(2)
    return inter / (area1[:, None] + area2[None] - inter).clamp(min=1e-6)


def nms(boxes, scores, threshold=0.5):
    keep, order = [], scores.argsort(descending=True)
    while len(order):
        keep.append(order[0])
        order = order[1:][box_iou(boxes[order[:1]], boxes[order[1:]])[0] <= threshold]
    return torch.stack(keep) if keep else order


class MeanAveragePrecision:
    """Area under the precision-recall curve at IoU 0.5, averaged over the classes."""

    def __init__(self, num_classes, iou_threshold=0.5):
        self.num_classes = num_classes
        self.iou_threshold = iou_threshold
        self.reset()

    def reset(self):
        self.hits = defaultdict(list)
        self.num_targets = defaultdict(int)

    def update(self, predictions, targets):
        for pred, target in zip(predictions, targets, strict=True):
            for cls in range(self.num_classes):
                wanted = target["boxes"][target["labels"] == cls]
                self.num_targets[cls] += len(wanted)
                mask, taken = pred["labels"] == cls, set()
                for box, score in zip(pred["boxes"][mask], pred["scores"][mask], strict=True):
                    hit = False
                    if len(wanted):
                        iou, index = box_iou(box[None], wanted)[0].max(0)
                        hit = iou.item() >= self.iou_threshold and index.item() not in taken
                        if hit:
                            taken.add(index.item())
                    self.hits[cls].append((score.item(), hit))

    def compute(self):
        precisions = []
        for cls in range(self.num_classes):
            if not self.num_targets[cls]:
                continue
            ranked = [hit for _, hit in sorted(self.hits[cls], key=lambda one: -one[0])]
            found, area = 0, 0.0
            for rank, hit in enumerate(ranked, start=1):
                found += hit
                area += hit * found / rank
            precisions.append(area / self.num_targets[cls])
        return sum(precisions) / max(len(precisions), 1)


class AnchorDetector(nn.Module):
    def __init__(self, num_classes, width=8, image_size=32, stride=4, sizes=(6.0, 8.0, 10.0)):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
        )
        self.num_classes = num_classes
        self.cls_head = nn.Conv2d(2 * width, len(sizes) * num_classes, 3, padding=1)
        self.reg_head = nn.Conv2d(2 * width, len(sizes) * 4, 3, padding=1)
        nn.init.constant_(self.cls_head.bias, -math.log((1 - 0.01) / 0.01))
        centers = (torch.arange(image_size // stride) + 0.5) * stride
        cy, cx = torch.meshgrid(centers, centers, indexing="ij")
        grid = torch.stack([cx, cy], -1).view(-1, 1, 2).expand(-1, len(sizes), 2)
        size = torch.tensor(sizes).view(1, -1, 1).expand(len(grid), -1, 2)
        self.register_buffer("anchors", torch.cat([grid, size], -1).reshape(-1, 4), persistent=False)

    def forward(self, images):
        features = self.backbone(images)
        logits, deltas = self.cls_head(features), self.reg_head(features)
        logits = logits.permute(0, 2, 3, 1).reshape(len(images), -1, self.num_classes)
        return logits, deltas.permute(0, 2, 3, 1).reshape(len(images), -1, 4)

    @property
    def anchor_boxes(self):
        return torch.cat(
            [self.anchors[:, :2] - self.anchors[:, 2:] / 2, self.anchors[:, :2] + self.anchors[:, 2:] / 2],
            1,
        )

    def encode(self, boxes):
        centers, sizes = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        return centers, sizes

    def decode(self, deltas):
        centers = self.anchors[:, :2] + deltas[..., :2] * self.anchors[:, 2:]
        sizes = self.anchors[:, 2:] * deltas[..., 2:].clamp(max=2.0).exp()
        return torch.cat([centers - sizes / 2, centers + sizes / 2], -1)


class LitDetector(L.LightningModule):
    def __init__(
        self, num_classes=2, width=8, lr=0.02, momentum=0.9, weight_decay=1e-4, warmup_steps=6,
        milestones=(3, 4), gamma=0.1, score_threshold=0.05, nms_threshold=0.5, max_detections=10,
    ):  # fmt: skip
        super().__init__()
        self.save_hyperparameters()
        self.detector = AnchorDetector(num_classes, width)
        self.val_map = MeanAveragePrecision(num_classes)
        self.test_map = MeanAveragePrecision(num_classes)
        self.example_input_array = torch.zeros(2, 3, 32, 32)

    def forward(self, images):
        return self.detector(images)

    def match(self, target):
        """Labels of anchors (-1: background, -2: ignored) and the boxes they have to become."""
        overlaps = box_iou(self.detector.anchor_boxes, target["boxes"])
        best, index = overlaps.max(1)
        labels = torch.where(best >= 0.5, target["labels"][index], torch.full_like(index, -1))
        labels[(best >= 0.4) & (best < 0.5)] = -2
        closest = overlaps.argmax(0)
        labels[closest] = target["labels"]
        index[closest] = torch.arange(len(closest), device=index.device)
        return labels, target["boxes"][index]

    def compute_losses(self, images, targets):
        logits, deltas = self(images)
        cls_loss, reg_loss, num_pos = logits.new_zeros(()), logits.new_zeros(()), 0
        anchors = self.detector.anchors
        for logit, delta, target in zip(logits, deltas, targets, strict=True):
            labels, boxes = self.match(target)
            positive, valid = labels >= 0, labels > -2
            one_hot = F.one_hot(labels.clamp(min=0), self.hparams.num_classes) * positive[:, None]
            bce = F.binary_cross_entropy_with_logits(logit, one_hot.float(), reduction="none")
            focal = (1 - torch.exp(-bce)) ** 2 * bce
            cls_loss = cls_loss + focal[valid].sum()
            centers, sizes = self.detector.encode(boxes[positive])
            shift = (centers - anchors[positive, :2]) / anchors[positive, 2:]
            wanted = torch.cat([shift, (sizes / anchors[positive, 2:]).log()], 1)
            reg_loss = reg_loss + F.smooth_l1_loss(delta[positive], wanted, beta=0.1, reduction="sum")
            num_pos += int(positive.sum())
        return {"cls_loss": cls_loss / max(num_pos, 1), "reg_loss": reg_loss / max(num_pos, 1)}

    def training_step(self, batch, batch_idx):
        images, targets = batch
        losses = self.compute_losses(images, targets)
        loss = sum(losses.values())
        self.log_dict({f"train/{k}": v for k, v in losses.items()}, batch_size=len(images))
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True, batch_size=len(images))
        return loss

    @torch.no_grad()
    def detect(self, images):
        logits, deltas = self(images)
        results = []
        for scores, boxes in zip(logits.sigmoid(), self.detector.decode(deltas), strict=True):
            scores, labels = scores.max(-1)
            mask = scores > self.hparams.score_threshold
            scores, labels, boxes = scores[mask], labels[mask], boxes[mask]
            # boxes of different classes never overlap after this shift
            keep = nms(boxes + labels[:, None] * 1000.0, scores, self.hparams.nms_threshold)
            keep = keep[: self.hparams.max_detections]
            results.append({"boxes": boxes[keep], "scores": scores[keep], "labels": labels[keep]})
        return results

    def on_validation_epoch_start(self):
        self.val_map.reset()

    def validation_step(self, batch, batch_idx):
        images, targets = batch
        losses = self.compute_losses(images, targets)
        self.log("val/loss", sum(losses.values()), prog_bar=True, batch_size=len(images))
        self.val_map.update(self.detect(images), targets)

    def on_validation_epoch_end(self):
        self.log("val/map", self.val_map.compute(), prog_bar=True)

    def on_test_epoch_start(self):
        self.test_map.reset()
        self.test_predictions = []

    def test_step(self, batch, batch_idx):
        images, targets = batch
        found = self.detect(images)
        self.test_map.update(found, targets)
        return [{"image_id": t["image_id"].item(), **f} for f, t in zip(found, targets, strict=True)]

    def on_test_epoch_end(self):
        self.log("test/map", self.test_map.compute())

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        no_decay = [p for p in self.parameters() if p.ndim <= 1]
        optimizer = torch.optim.SGD(
            [{"params": decay, "weight_decay": self.hparams.weight_decay}, {"params": no_decay}],
            lr=self.hparams.lr,
            momentum=self.hparams.momentum,
        )
        scheduler = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, milestones=list(self.hparams.milestones), gamma=self.hparams.gamma
        )
        return [optimizer], [scheduler]

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        # skip the rest once the warmup is over: MultiStepLR sets the rate then
        if self.trainer.global_step < self.hparams.warmup_steps:
            lr_scale = min(1.0, float(self.trainer.global_step + 1) / self.hparams.warmup_steps)
            for pg in optimizer.param_groups:
                pg["lr"] = lr_scale * self.hparams.lr


class SaveDetections(Callback):
    """Writes what was found in the test pictures as COCO has it."""

    def __init__(self, filename):
        self.filename = filename
        self.results = []

    def on_test_start(self, trainer, pl_module):
        self.results.clear()

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        for output in outputs:
            for box, score, label in zip(output["boxes"], output["scores"], output["labels"], strict=True):
                x1, y1, x2, y2 = box.tolist()
                entry = {"image_id": output["image_id"], "category_id": int(label), "score": float(score)}
                self.results.append({**entry, "bbox": [x1, y1, x2 - x1, y2 - y1]})

    def on_test_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            path = os.path.join(trainer.logger.log_dir, self.filename)
            with open(path, "w") as f:
                json.dump(self.results, f)


def main(max_epochs=5, **trainer_options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--output_dir", default="outputs")
    args = parser.parse_args([])

    L.seed_everything(42, workers=True)
    datamodule = ShapesDataModule(batch_size=args.batch_size)
    model = LitDetector(num_classes=len(CLASSES), lr=args.lr)
    checkpoint = ModelCheckpoint(
        monitor="val/map",
        mode="max",
        save_top_k=2,
        save_last=True,
        filename="epoch={epoch:02d}-map={val/map:.3f}",
        auto_insert_metric_name=False,
    )
    callbacks = [
        checkpoint,
        EarlyStopping(
            monitor="val/loss", mode="min", patience=args.patience, min_delta=0.001, verbose=True
        ),
        LearningRateMonitor(logging_interval="step"),
        SaveDetections("detections.json"),
    ]
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=callbacks,
        logger=[
            TensorBoardLogger(args.output_dir, name="detector"),
            CSVLogger(args.output_dir, name="csv"),
        ],
        gradient_clip_val=10.0,
        log_every_n_steps=2,
        **trainer_options,
    )
    trainer.fit(model, datamodule=datamodule)
    print("best mAP", checkpoint.best_model_score, "of", checkpoint.best_model_path)

    (metrics,) = trainer.test(model, datamodule=datamodule, ckpt_path="best")
    with open(Path(trainer.logger.log_dir) / "detections.json") as f:
        detections = json.load(f)
    assert all(0 <= d["category_id"] < len(CLASSES) for d in detections)

    best = LitDetector.load_from_checkpoint(checkpoint.best_model_path, score_threshold=0.3)
    assert best.hparams.score_threshold == 0.3
    assert best.hparams.milestones == model.hparams.milestones
    best.eval()
    images, targets = collate_fn([datamodule.test_set[i] for i in range(4)])
    metric = MeanAveragePrecision(len(CLASSES))
    metric.update(best.detect(images), targets)
    assert 0.0 <= metric.compute() <= 1.0 >= metrics["test/map"]
    assert Path(trainer.checkpoint_callback.last_model_path).exists()
    return trainer, best


if __name__ == "__main__":
    main()
