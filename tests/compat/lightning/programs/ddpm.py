"""Denoising diffusion on pictures of 8x8, with an average of the weights that validates and samples.

python ddpm.py --max-steps 20000 --timesteps 1000 --ema-decay 0.9999
"""

from __future__ import annotations

import argparse
import math
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichModelSummary
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


def bars(n: int, seed: int) -> torch.Tensor:
    """Pictures (n, 1, 8, 8) from -1 to 1: a bright row or column."""
    g = torch.Generator().manual_seed(seed)
    images = -torch.ones(n, 1, 8, 8)
    for image in images:
        place, upright = int(torch.randint(8, (1,), generator=g)), torch.rand(1, generator=g) < 0.5
        if upright:
            image[0, :, place] = 1
        else:
            image[0, place] = 1
    return images


class BarsDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int = 8, n_train: int = 64, n_val: int = 16):
        super().__init__()
        self.save_hyperparameters()
        self.train_data = self.val_data = None

    def setup(self, stage: str | None = None):
        if self.train_data is None:
            self.train_data = TensorDataset(bars(self.hparams.n_train, seed=0))
            self.val_data = TensorDataset(bars(self.hparams.n_val, seed=1))

    def train_dataloader(self):
        return DataLoader(self.train_data, batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self.val_data, batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return self.val_dataloader()


# --- network ---


def timestep_embedding(t: torch.Tensor, dim: int) -> torch.Tensor:
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin: int, cout: int, emb: int):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, cin), nn.GroupNorm(2, cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(F.silu(emb))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class SmallUNet(nn.Module):
    def __init__(self, base: int = 8, emb: int = 16):
        super().__init__()
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(1, base, 3, padding=1)
        self.down1, self.down2 = ResBlock(base, base, emb), ResBlock(base, 2 * base, emb)
        self.pool = nn.Conv2d(base, base, 3, stride=2, padding=1)
        self.mid = ResBlock(2 * base, 2 * base, emb)
        self.up = ResBlock(3 * base, base, emb)
        self.out = nn.Sequential(nn.GroupNorm(2, base), nn.SiLU(), nn.Conv2d(base, 1, 3, padding=1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        emb = self.time(timestep_embedding(t, self.base))
        one = self.down1(self.inp(x), emb)
        two = self.mid(self.down2(self.pool(one), emb), emb)
        up = F.interpolate(two, scale_factor=2.0, mode="nearest")
        return self.out(self.up(torch.cat([one, up], dim=1), emb))


# --- diffusion ---


def cosine_betas(timesteps: int, s: float = 0.008) -> torch.Tensor:
    steps = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64) / timesteps
    alphas = torch.cos((steps + s) / (1 + s) * math.pi / 2) ** 2
    betas = 1 - alphas[1:] / alphas[:-1]
    return betas.clamp(0, 0.999).float()


def extract(values: torch.Tensor, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return values.gather(0, t).reshape(-1, *[1] * (x.ndim - 1))


class DDPM(L.LightningModule):
    """Predicts the noise in a picture (Ho et al., 2020)."""

    def __init__(
        self, timesteps: int = 20, base: int = 8, lr: float = 2e-3, num_samples: int = 4, seed: int = 0
    ):
        super().__init__()
        self.save_hyperparameters()
        self.net = SmallUNet(base)
        betas = cosine_betas(timesteps)
        alphas_cumprod = (1 - betas).cumprod(0)
        previous = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
        self.register_buffer("betas", betas)
        self.register_buffer("alphas_cumprod", alphas_cumprod)
        self.register_buffer("posterior_variance", betas * (1 - previous) / (1 - alphas_cumprod))
        self.val_losses: list[torch.Tensor] = []

    def _generator(self, *numbers: int) -> torch.Generator:
        seed = self.hparams.seed
        for number in numbers:
            seed = seed * 1_000_003 + number + 1
        return torch.Generator().manual_seed(seed % 2**63)

    def q_sample(self, x: torch.Tensor, t: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        a = extract(self.alphas_cumprod, t, x)
        return a.sqrt() * x + (1 - a).sqrt() * noise

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.net(x, t)

    def p_losses(self, x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        """The loss of each picture."""
        t = torch.randint(self.hparams.timesteps, (len(x),), generator=g).to(x.device)
        noise = torch.randn(x.shape, generator=g).to(x)
        predicted = self(self.q_sample(x, t, noise), t)
        return F.mse_loss(predicted, noise, reduction="none").mean((1, 2, 3))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (x,) = batch
        loss = self.p_losses(x, self._generator(0, self.current_epoch, batch_idx)).mean()
        self.log("train/loss", loss, prog_bar=True)
        self.log("global_step", float(self.global_step), prog_bar=True, logger=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_losses.append(self.p_losses(batch[0], self._generator(1, batch_idx)))

    @torch.no_grad()
    def sample(self, n: int) -> torch.Tensor:
        g = self._generator(2)
        x = torch.randn(n, 1, 8, 8, generator=g).to(self.device)
        for i in reversed(range(self.hparams.timesteps)):
            t = torch.full((n,), i, device=self.device)
            alpha = extract(1 - self.betas, t, x)
            scale = extract(self.betas / (1 - self.alphas_cumprod).sqrt(), t, x)
            x = (x - scale * self(x, t)) / alpha.sqrt()
            if i > 0:
                noise = torch.randn(x.shape, generator=g).to(x)
                x = x + extract(self.posterior_variance, t, x).sqrt() * noise
        return x.clamp(-1, 1)

    def on_validation_epoch_end(self) -> None:
        losses = torch.cat(self.val_losses)
        self.val_losses.clear()
        self.log("val/loss", losses.mean(), prog_bar=True, sync_dist=True)
        images = self.sample(self.hparams.num_samples)
        self.log("val/sample_mean", images.mean())
        self._show(images)

    @rank_zero_only
    def _show(self, images: torch.Tensor) -> None:
        if isinstance(self.logger, TensorBoardLogger):
            grid = torch.cat(list((images + 1) / 2), dim=-1)
            self.logger.experiment.add_image("samples", grid, self.global_step)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        losses = self.p_losses(batch[0], self._generator(1, batch_idx))
        self.log("test/loss", losses.mean(), on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=self.hparams.lr, betas=(0.9, 0.99))
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}


class EMA(Callback):
    """Keeps an average of the parameters, and puts it in the place of the weights to evaluate.

    Args:
        decay: Of the average; smaller in the first steps.
        every: Optimizer steps between updates.
    """

    def __init__(self, decay: float = 0.999, every: int = 1):
        self.decay, self.every = decay, every
        self.ema: dict[str, torch.Tensor] | None = None
        self.backup: dict[str, torch.Tensor] | None = None
        self.updates = 0
        self._last_step = 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.ema is None:
            self.ema = {n: p.detach().clone() for n, p in pl_module.net.named_parameters()}
        self.ema = {name: value.to(pl_module.device) for name, value in self.ema.items()}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._last_step = trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self._last_step or step % self.every:
            return  # gradients are being accumulated
        self._last_step = step
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, p in pl_module.net.named_parameters():
            self.ema[name].lerp_(p.detach(), 1 - decay)
        pl_module.log("ema_decay", decay)

    def _swap(self, pl_module: L.LightningModule) -> None:
        if self.ema is None:
            return
        self.backup = deepcopy(pl_module.net.state_dict())
        pl_module.net.load_state_dict(self.ema, strict=False)

    def _restore(self, pl_module: L.LightningModule) -> None:
        if self.backup is not None:
            pl_module.net.load_state_dict(self.backup)
            self.backup = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._swap(pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore(pl_module)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._swap(pl_module)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore(pl_module)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._restore(pl_module)

    @contextmanager
    def average_parameters(self, pl_module: L.LightningModule):
        self._swap(pl_module)
        try:
            yield
        finally:
            self._restore(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"ema": self.ema, "updates": self.updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.ema, self.updates = state_dict["ema"], state_dict["updates"]


def make_trainer(args: argparse.Namespace, name: str, max_epochs: int, **options: Any):
    ema = EMA(args.ema_decay)
    checkpoint = ModelCheckpoint(
        dirpath=Path(args.out) / name,
        filename="{epoch}-{step}",
        monitor="val/loss",
        save_last=True,
        save_top_k=2,
    )
    trainer = L.Trainer(
        logger=[TensorBoardLogger(args.out, name), CSVLogger(args.out, name)],
        callbacks=[ema, checkpoint, RichModelSummary(max_depth=1)],
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        gradient_clip_algorithm="norm",
        num_sanity_val_steps=0,
        log_every_n_steps=2,
        **options | {"max_epochs": max_epochs},
    )
    return trainer, ema, checkpoint


def main(argv=(), **trainer_options: Any):
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--more-epochs", type=int, default=1)
    parser.add_argument("--ema-decay", type=float, default=0.95)
    parser.add_argument("--out", default="ddpm_runs")
    args = parser.parse_args(argv)

    L.seed_everything(11, workers=True)
    datamodule = BarsDataModule()
    trainer, ema, checkpoint = make_trainer(args, "first", args.epochs, **trainer_options)
    model = DDPM(args.timesteps)
    trainer.fit(model, datamodule)
    assert ema.updates == trainer.global_step

    trainer, resumed, _ = make_trainer(args, "resumed", args.epochs + args.more_epochs, **trainer_options)
    model = DDPM(args.timesteps)
    trainer.fit(model, datamodule, ckpt_path=checkpoint.last_model_path)
    assert resumed.updates == trainer.global_step > ema.updates
    trainer.test(model, datamodule)

    before = deepcopy(model.net.state_dict())
    with resumed.average_parameters(model):
        averaged = model.sample(8)
    assert all(torch.equal(before[k], v) for k, v in model.net.state_dict().items())
    print("mean of samples", float(averaged.mean()), float(model.sample(8).mean()))
    return trainer, model


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
