"""Optimizers that hold other weights than those of the module, or not all of them."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from paceline import TrainModule
from paceline.callbacks import Callback

from ...programs import planted
from ...tasks import backbone, clusters, forecasts, loader, loaders, mlp, pictures, ring, sentences, views


class Supervised(TrainModule):
    """Cross-entropy of ``forward``, and its accuracy."""

    def training_step(self, batch):
        return F.cross_entropy(self(*batch[:-1]), batch[-1])

    def validation_step(self, batch):
        logits = self(*batch[:-1])
        self.log("loss", F.cross_entropy(logits, batch[-1]))
        self.log("accuracy", (logits.argmax(1) == batch[-1]).float().mean())


@planted("weights-remade", area="transfer", source="https://github.com/meta-pytorch/opacus/issues/432")
def replaces_batch_norms_after_the_optimizer_was_built(trainer):
    """Batch norms are replaced by group norms when the optimizer has the old ones' weights."""

    class Private(Supervised):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(backbone(), nn.Linear(24, 4))

        def forward(self, x):
            return self.net(x)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

        def on_fit_start(self):
            for name, layer in self.net[0].named_children():
                if isinstance(layer, nn.BatchNorm2d):
                    setattr(self.net[0], name, nn.GroupNorm(4, layer.num_features))

    trainer(max_epochs=3).fit(Private(), *loaders(*pictures()))


@planted("weights-remade", area="transfer")
def replaces_the_head_when_training_starts(trainer):
    """The classifier for the new classes is put in at the start of the fit, after the optimizer."""

    class FineTuned(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = backbone()
            self.head = nn.Linear(24, 8)

        def forward(self, x):
            return self.head(self.backbone(x))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=2e-3)

        def on_fit_start(self):
            self.head = nn.Linear(24, 4)

    trainer(max_epochs=3).fit(FineTuned(), *loaders(*pictures()))


@planted("weights-remade", area="table", source="https://github.com/microsoft/nni/issues/4521")
def makes_layers_smaller_after_the_first_epoch(trainer):
    """A callback replaces a layer by a pruned, smaller one: the optimizer goes on with the old one."""

    class Pruning(Callback):
        def on_train_epoch_start(self, trainer):
            if trainer.epoch != 1:
                return
            first, _, last = trainer.module.net
            kept = first.weight.detach().norm(dim=1).topk(24).indices
            smaller, behind = nn.Linear(8, 24), nn.Linear(24, 3)
            with torch.no_grad():
                smaller.weight.copy_(first.weight[kept])
                smaller.bias.copy_(first.bias[kept])
                behind.weight.copy_(last.weight[:, kept])
                behind.bias.copy_(last.bias)
            trainer.module.net[0], trainer.module.net[2] = smaller, behind

    class Network(Supervised):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 3, hidden=48)

        def forward(self, x):
            return self.net(x)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer(max_epochs=5, callbacks=[Pruning()]).fit(Network(), *loaders(*clusters()))


@planted("weights-remade", area="series")
def assigns_new_parameters_to_initialise_a_layer(trainer):
    """Weights are initialised by new parameters in on_fit_start, when the optimizer has the old ones."""

    class Forecaster(TrainModule):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def forward(self, window):
            return self.out(self.gru(window)[0][:, -1]).squeeze(1)

        def training_step(self, batch):
            window, following = batch
            return F.smooth_l1_loss(self(window), following)

        def validation_step(self, batch):
            window, following = batch
            return F.smooth_l1_loss(self(window), following)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

        def on_train_epoch_start(self):
            if self.trainer.global_step == 0:
                weight = torch.empty_like(self.out.weight)
                nn.init.xavier_uniform_(weight)
                self.out.weight = nn.Parameter(weight)
                self.out.bias = nn.Parameter(torch.zeros(1))

    trainer(max_epochs=4).fit(Forecaster(), *loaders(*forecasts()))


@planted("weights-remade", area="gan")
def copies_the_generator_after_the_optimizers_were_built(trainer):
    """The generator that makes the samples is a copy of the one whose weights are updated."""

    class Gan(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = mlp(4, 2, hidden=32)
            self.critic = mlp(2, 1, hidden=32)

        def configure_optimizers(self):
            generator = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
            critic = torch.optim.Adam(self.critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
            return [generator, critic]

        def on_fit_start(self):
            self.generator = copy.deepcopy(self.generator)

        def training_step(self, batch):
            (real,) = batch
            for_generator, for_critic = self.optimizers()
            fake = self.generator(torch.randn(len(real), 4))
            self.toggle_optimizer(for_critic)
            loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean()
            self.log("critic", loss)
            for_critic.zero_grad()
            self.manual_backward(loss)
            for_critic.step()
            self.untoggle_optimizer(for_critic)
            fake = self.generator(torch.randn(len(real), 4))
            loss = F.softplus(-self.critic(fake)).mean()
            self.log("generator", loss)
            for_generator.zero_grad()
            self.manual_backward(loss)
            for_generator.step()

    trainer(max_epochs=3).fit(Gan(), loader(ring(), batch=64))


@planted("weights-remade", area="language", source="https://github.com/huggingface/transformers/pull/3532")
def resizes_the_embedding_after_the_optimizer_was_built(trainer):
    """The vocabulary grows when the fit begins, and the optimizer has the old embedding's weights."""

    class Classifier(Supervised):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(24, 16, padding_idx=0)
            self.gru, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 2)

        def resize(self, words):
            old = self.embedding.weight.data
            self.embedding = nn.Embedding(words, 16, padding_idx=0)
            self.embedding.weight.data[: len(old)] = old

        def on_fit_start(self):
            self.resize(30)

        def forward(self, tokens, lengths):
            states, _ = self.gru(self.embedding(tokens))
            return self.head(states[torch.arange(len(tokens)), lengths - 1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Classifier(), *loaders(*sentences()))


@planted("not-in-optimizer", area="language")
def filters_parameters_while_the_embedding_is_frozen(trainer):
    """Groups take what requires a gradient when they are made; the embedding, thawed later, is in none."""

    class Tagger(TrainModule):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16, padding_idx=0)
            self.embedding.weight.requires_grad = False
            self.encoder = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
            self.output = nn.Linear(32, 3)

        def loss(self, batch):
            tokens, _, _ = batch
            tags = torch.where(tokens == 0, -100, (tokens > 4).long() + (tokens > 17).long())
            logits = self.output(self.encoder(self.embedding(tokens))[0])
            return F.cross_entropy(logits.flatten(0, 1), tags.flatten())

        def on_step_start(self):
            if self.trainer.global_step == 5:
                self.embedding.weight.requires_grad = True

        def training_step(self, batch):
            return self.loss(batch)

        def validation_step(self, batch):
            self.log("loss", self.loss(batch))

        def configure_optimizers(self):
            groups = []
            for part, rate in ((self.embedding, 1e-3), (self.encoder, 3e-3), (self.output, 1e-2)):
                trained = [parameter for parameter in part.parameters() if parameter.requires_grad]
                if trained:
                    groups.append({"params": trained, "lr": rate})
            return torch.optim.AdamW(groups, weight_decay=0.01)

    trainer(max_epochs=3).fit(Tagger(), *loaders(*sentences()))


@planted("not-in-optimizer", area="transfer")
def never_gives_the_thawed_backbone_to_the_optimizer(trainer):
    """The backbone is thawed after an epoch, and the optimizer has the head's weights alone."""

    class FineTuned(Supervised):
        def __init__(self):
            super().__init__()
            self.backbone = backbone().requires_grad_(False)
            self.head = nn.Linear(24, 4)

        def forward(self, x):
            return self.head(self.backbone(x))

        def on_train_epoch_start(self):
            thawed = self.trainer.epoch >= 1
            self.backbone.requires_grad_(thawed)
            for layer in self.backbone:
                if isinstance(layer, nn.BatchNorm2d):
                    layer.train(thawed)

        def configure_optimizers(self):
            trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
            return torch.optim.Adam(trained, lr=5e-3)

    trainer(max_epochs=4).fit(FineTuned(), *loaders(*pictures()))


@planted("not-in-optimizer", area="contrastive")
def makes_the_projection_at_the_first_batch(trainer):
    """The projection is made when the first batch shows its width, after the optimizer was built."""

    class Clip(TrainModule):
        def __init__(self):
            super().__init__()
            self.image = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
            self.text = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
            self.projection = None

        def embed(self, tower, view):
            features = tower(view)
            if self.projection is None:
                self.projection = nn.Linear(features.shape[1], 8)
            return F.normalize(self.projection(features), dim=1)

        def training_step(self, batch):
            image, text = self.embed(self.image, batch[0]), self.embed(self.text, batch[1])
            logits = image @ text.T / 0.2
            targets = torch.arange(len(logits))
            return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer(max_epochs=4).fit(Clip(), loader(*views(), batch=64, drop_last=True))


@planted("not-in-optimizer", area="vision")
def grows_the_network_by_layers_that_no_optimizer_gets(trainer):
    """A layer is added in the second epoch and in the third, and the optimizer stays as it was."""

    class Growing(Supervised):
        def __init__(self):
            super().__init__()
            self.enter = nn.Conv2d(1, 12, 3, padding=1)
            self.blocks = nn.ModuleList([nn.Conv2d(12, 12, 3, padding=1)])
            self.head = nn.Linear(12, 4)

        def forward(self, images):
            x = F.relu(self.enter(images))
            for block in self.blocks:
                x = x + F.relu(block(x))
            return self.head(x.amax((2, 3)))

        def on_train_epoch_start(self):
            if self.trainer.epoch > 0:
                self.blocks.append(nn.Conv2d(12, 12, 3, padding=1))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    trainer(max_epochs=4).fit(Growing(), *loaders(*pictures()))
