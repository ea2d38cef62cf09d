"""Detection: batches are dicts with lists of targets, collated and moved by hand; a dict of losses."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    """One to three bright squares in each picture."""

    def __init__(self, size=24, seed=13):
        generator = torch.Generator().manual_seed(seed)
        self.samples = []
        for index in range(size):
            corners = torch.randint(0, 8, (1 + index % 3, 2), generator=generator)
            image = 0.1 * torch.randn(1, 12, 12, generator=generator)
            for x, y in corners.tolist():
                image[:, x : x + 4, y : y + 4] += 1
            boxes = torch.cat([corners, corners + 4], 1).float()
            target = {
                "boxes": boxes,
                "labels": torch.ones(len(boxes), dtype=torch.int64),
                "image_id": index,
            }
            self.samples.append((image, target))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def collate_fn(samples):
    images, targets = zip(*samples, strict=True)
    return {
        "images": list(images),
        "targets": list(targets),
        "names": [f"{t['image_id']:03d}.png" for t in targets],
    }


class Detector(nn.Module):
    """Takes pictures and, in training, their targets, and returns losses then; like torchvision's."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3))
        self.box_head, self.score_head = nn.Linear(72, 4), nn.Linear(72, 4)

    def forward(self, images, targets=None):
        features = self.backbone(torch.stack(images)).flatten(1)
        boxes, scores = 12 * self.box_head(features).sigmoid(), self.score_head(features)
        if targets is None:
            return [{"boxes": b[None], "scores": s.softmax(-1)} for b, s in zip(boxes, scores, strict=True)]
        wanted = torch.stack([t["boxes"].mean(0) for t in targets])
        counts = torch.tensor([len(t["labels"]) for t in targets], device=boxes.device)
        return {
            "loss_box_reg": F.smooth_l1_loss(boxes, wanted),
            "loss_classifier": F.cross_entropy(scores, counts),
        }


class LitDetector(L.LightningModule):
    def __init__(self, lr=0.02):
        super().__init__()
        self.model = Detector()
        self.lr = lr
        self.val_ious = []

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        batch["images"] = [image.to(device) for image in batch["images"]]
        for target in batch["targets"]:
            target["boxes"] = target["boxes"].to(device)
            target["labels"] = target["labels"].to(device)
        return batch

    def on_after_batch_transfer(self, batch, dataloader_idx):
        if self.trainer.training:
            batch["images"] = [image.clamp(0, 1) for image in batch["images"]]
        return batch

    def training_step(self, batch, batch_idx):
        loss_dict = self.model(batch["images"], batch["targets"])
        losses = sum(loss for loss in loss_dict.values())
        self.log_dict(loss_dict, batch_size=len(batch["images"]))
        self.log("train_loss", losses, prog_bar=True, batch_size=len(batch["images"]))
        return losses

    def validation_step(self, batch, batch_idx):
        for found, target in zip(self.model(batch["images"]), batch["targets"], strict=True):
            self.val_ious.append(self.iou(found["boxes"][0], target["boxes"]).max())

    def on_validation_epoch_end(self):
        self.log("val_map", torch.stack(self.val_ious).mean(), prog_bar=True)
        self.val_ious = []

    @staticmethod
    def iou(box, boxes):
        size = (torch.min(box[2:], boxes[:, 2:]) - torch.max(box[:2], boxes[:, :2])).clamp(min=0)
        inside = size.prod(1)
        area = (box[2:] - box[:2]).clamp(min=0).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(1)
        return inside / (area - inside)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=0.0005)
        lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": lr_scheduler}


def main(max_epochs=2, **trainer_options):
    L.seed_everything(7)
    train = DataLoader(Boxes(), batch_size=5, collate_fn=collate_fn)
    val = DataLoader(Boxes(8, seed=14), batch_size=3, collate_fn=collate_fn)
    model = LitDetector()
    trainer = L.Trainer(max_epochs=max_epochs, log_every_n_steps=1, **trainer_options)
    trainer.fit(model, train, val)
    return trainer, model
