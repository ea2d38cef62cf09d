"""Parts that are meant to be frozen, with and without their norms, for a while or for good."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader

from paceline import TrainModule
from paceline.callbacks import Freeze
from paceline.parameter_groups import layer_groups

from ..programs import right
from ..tasks_right import accuracy, loaders, pictures, pretrained


@right(area="transfer")
def linear_probe_on_a_frozen_backbone(trainer):
    """The backbone is frozen and stays in eval mode, also in training: only the linear head learns."""

    class Probe(TrainModule):
        def __init__(self):
            super().__init__()
            self.backbone = pretrained().requires_grad_(False)
            self.head = nn.Linear(32, 4)
            self.train()

        def train(self, mode=True):
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, x):
            with torch.no_grad():
                features = self.backbone(x)
            return self.head(features)

        def training_step(self, batch):
            return cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)

    trainer(max_epochs=4).fit(Probe(), *loaders(*pictures(seed=1)))


@right(area="transfer")
def head_first_and_then_all_of_it(trainer):
    """The backbone is frozen for two epochs; then it learns with a tenth of the rate."""

    class FineTune(TrainModule):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = pretrained(), nn.Linear(32, 4)

        def on_train_epoch_start(self):
            if self.epoch < 2:
                self.backbone.eval()
            else:
                self.backbone.train()

        def training_step(self, batch):
            return cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def validation_step(self, batch):
            scores = self.head(self.backbone(batch[0]))
            self.log("loss", cross_entropy(scores, batch[1]))
            self.log("accuracy", accuracy(scores, batch[1]))

        def configure_optimizers(self):
            groups = [
                {"params": self.head.parameters()},
                {"params": self.backbone.parameters(), "lr": 3e-4},
            ]
            return torch.optim.Adam(groups, lr=3e-3)

    train, val = loaders(*pictures(seed=2))
    trainer(max_epochs=4, callbacks=[Freeze("backbone.*", until="2ep")]).fit(FineTune(), train, val)


@right(area="transfer", source="https://arxiv.org/abs/1603.04779")
def norms_adapt_to_a_new_domain(trainer):
    """All but the head is frozen; batch norms are in training mode to take the new domain's statistics."""

    class AdaBN(TrainModule):
        def __init__(self):
            super().__init__()
            self.backbone = pretrained()
            self.backbone.requires_grad_(False)
            self.classifier = nn.Linear(32, 4)

        def training_step(self, batch):
            images, labels = batch
            return cross_entropy(self.classifier(self.backbone(images)), labels)

        def validation_step(self, batch):
            images, labels = batch
            self.log("accuracy", accuracy(self.classifier(self.backbone(images)), labels))

        def configure_optimizers(self):
            return torch.optim.Adam(self.classifier.parameters(), lr=1e-2)

    images, labels = pictures(seed=3)
    infrared = -0.5 * images + 0.3
    trainer(max_epochs=4).fit(AdaBN(), *loaders(infrared, labels))


@right(area="transfer", source="https://arxiv.org/abs/2003.00152")
def only_norms_are_trained(trainer):
    """Convolutions keep their random weights: scale and shift of the norms, and the head, are trained."""

    class OnlyNorms(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(128, 4),
            )  # fmt: skip
            for layer in self.net:
                if isinstance(layer, nn.Conv2d):
                    layer.requires_grad_(False)

        def training_step(self, batch):
            scores = self.net(batch[0])
            self.log("accuracy", accuracy(scores, batch[1]))
            return cross_entropy(scores, batch[1])

        def validation_step(self, batch):
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam((p for p in self.parameters() if p.requires_grad), lr=5e-3)

    trainer(max_epochs=4).fit(OnlyNorms(), *loaders(*pictures(seed=4)))


@right(area="transfer", source="https://arxiv.org/abs/2106.10199")
def only_biases_are_trained(trainer):
    """BitFit: every weight matrix is frozen, all biases and the new head learn."""

    class Patches(TrainModule):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(4, 32)
            self.places = nn.Parameter(0.5 * torch.randn(16, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(32, 8)

        def forward(self, images):
            patches = images.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).flatten(1, 3)
            return self.head(self.encoder(self.embed(patches) + self.places).mean(1))

        def training_step(self, batch):
            return cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            trainable = filter(lambda p: p.requires_grad, self.parameters())
            return torch.optim.Adam(trainable, lr=3e-3)

    module = Patches()
    trainer(max_epochs=8).fit(module, *loaders(*pictures(384, classes=8, seed=15)))
    module.head = nn.Linear(32, 4)
    for name, parameter in module.named_parameters():
        parameter.requires_grad = name.endswith("bias") or name.startswith("head.")
    trainer(max_epochs=6).fit(module, *loaders(*pictures(256, seed=5)))


@right(area="transfer", source="https://arxiv.org/abs/1603.08155")
def perceptual_loss_through_a_frozen_network(trainer):
    """Restored pictures are compared with clean ones by a frozen network, through which gradients flow."""

    class Restore(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1)
            )
            self.judge = pretrained()[:5].eval().requires_grad_(False)

        def train(self, mode=True):
            super().train(mode)
            self.judge.eval()
            return self

        def training_step(self, batch):
            clean, noisy = batch
            restored = noisy + self.net(noisy)
            with torch.no_grad():
                wanted = self.judge(clean)
            perceptual = mse_loss(self.judge(restored), wanted)
            pixels = mse_loss(restored, clean)
            self.log_dict({"perceptual": perceptual, "pixels": pixels})
            return pixels + 0.1 * perceptual

        def validation_step(self, batch):
            clean, noisy = batch
            self.log("pixels", mse_loss(noisy + self.net(noisy), clean))

        def configure_optimizers(self):
            return torch.optim.Adam(self.net.parameters(), lr=3e-3)

    clean, _ = pictures(256, seed=6)
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    trainer(max_epochs=3).fit(Restore(), *loaders(clean, noisy))


@right(
    area="vision",
    source="https://github.com/facebookresearch/detectron2/blob/main/detectron2/layers/batch_norm.py",
)
def detector_with_norms_frozen_in_eval_mode(trainer):
    """Batches are of two pictures, so the batch norms of the fine-tuned backbone stay in eval mode."""

    class Boxes(TrainModule):
        def __init__(self):
            super().__init__()
            self.backbone = pretrained()
            self.classes, self.centre = nn.Linear(32, 4), nn.Linear(32, 2)
            for layer in self.backbone.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.requires_grad_(False)

        def train(self, mode=True):
            super().train(mode)
            for layer in self.backbone.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.eval()
            return self

        def losses(self, batch):
            features = self.backbone(batch["image"])
            return {
                "class": cross_entropy(self.classes(features), batch["label"]),
                "centre": mse_loss(self.centre(features), batch["centre"]),
            }

        def training_step(self, batch):
            losses = self.losses(batch)
            self.log_dict(losses)
            return sum(losses.values())

        def validation_step(self, batch):
            self.log_dict(self.losses(batch))

        def configure_optimizers(self):
            trainable = [p for p in self.parameters() if p.requires_grad]
            return torch.optim.Adam(trainable, lr=1e-3)

    images, labels = pictures(160, seed=8)
    centres = torch.stack([labels % 2, labels // 2], 1) * 1.0 - 0.5
    samples = [
        {"image": i, "label": y, "centre": c} for i, y, c in zip(images, labels, centres, strict=True)
    ]
    train = DataLoader(samples[:120], batch_size=2, shuffle=True)
    val = DataLoader(samples[120:], batch_size=8)
    trainer(max_epochs=2).fit(Boxes().train(), train, val)


@right(area="transfer", source="https://arxiv.org/abs/1801.06146")
def rates_fall_from_the_head_to_the_first_layer(trainer):
    """The rates of eleven layers fall by a fifth each: the first has less than a tenth of the head's."""

    class Discriminative(TrainModule):
        def __init__(self):
            super().__init__()
            self.layers = pretrained()
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.layers(x))

        def training_step(self, batch):
            return cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(layer_groups(self, 3e-3, 0.8, layers="layers"))

    trainer(max_epochs=3).fit(Discriminative(), *loaders(*pictures(seed=9)))


@right(area="transfer")
def one_group_waits_with_a_rate_of_zero(trainer):
    """The backbone's own schedule holds its rate at 0 for the first epoch and then raises it."""

    class Waits(TrainModule):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = (
                pretrained(),
                nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 4)),
            )

        def training_step(self, batch):
            return cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self.head(self.backbone(batch[0])), batch[1]))

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(
                [{"params": self.backbone.parameters(), "lr": 1e-3}, {"params": self.head.parameters()}],
                lr=3e-3,
            )
            later = lambda epoch: 0.0 if epoch < 1 else min(1.0, epoch / 3)
            return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, [later, lambda epoch: 1.0])

    trainer(max_epochs=4).fit(Waits(), *loaders(*pictures(seed=10)))


@right(area="transfer", source="https://arxiv.org/abs/1902.10486")
def later_classes_have_outputs_already(trainer):
    """Eight classes are put out from the start; four of them come in a second fit, beside old pictures."""

    class Incremental(TrainModule):
        def __init__(self, classes=8):
            super().__init__()
            self.backbone, self.head = pretrained(), nn.Linear(32, classes)

        def training_step(self, batch):
            return cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def validation_step(self, batch):
            self.log("accuracy", accuracy(self.head(self.backbone(batch[0])), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    images, labels = pictures(640, classes=8, seed=11)
    samples = list(zip(images, labels, strict=True))
    train, val = samples[:480], samples[480:]
    old, old_val = ([s for s in part if s[1] < 4] for part in (train, val))
    new = [s for s in train if s[1] >= 4]
    module = Incremental()
    trainer(max_epochs=3).fit(module, DataLoader(old, 32, shuffle=True), DataLoader(old_val, 64))
    trainer(max_epochs=4).fit(module, DataLoader(new + old[:80], 32, shuffle=True), DataLoader(val, 64))
