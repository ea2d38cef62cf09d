"""Every hook and override point there is, in a module, a callback and a datamodule.

Four programs: fit, test and predict; fit with accumulation; manual optimization; a run that goes on.
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loader(size):
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)


class Data(L.LightningDataModule):
    def prepare_data(self): ...
    def setup(self, stage): ...
    def teardown(self, stage): ...
    def on_exception(self, exception): ...

    def train_dataloader(self):
        return loader(6)

    def val_dataloader(self):
        return loader(4)

    def test_dataloader(self):
        return loader(4)

    def predict_dataloader(self):
        return loader(4)

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch

    def state_dict(self):
        return {"read": 6}

    def load_state_dict(self, state_dict): ...


class Watch(L.Callback):
    """The module brings this one itself."""

    def on_train_start(self, trainer, pl_module): ...
    def on_train_end(self, trainer, pl_module): ...


class Hooks(L.Callback):
    def setup(self, trainer, pl_module, stage): ...
    def teardown(self, trainer, pl_module, stage): ...
    def on_fit_start(self, trainer, pl_module): ...
    def on_fit_end(self, trainer, pl_module): ...
    def on_sanity_check_start(self, trainer, pl_module): ...
    def on_sanity_check_end(self, trainer, pl_module): ...
    def on_train_start(self, trainer, pl_module): ...
    def on_train_end(self, trainer, pl_module): ...
    def on_train_epoch_start(self, trainer, pl_module): ...
    def on_train_epoch_end(self, trainer, pl_module): ...
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx): ...
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): ...
    def on_validation_start(self, trainer, pl_module): ...
    def on_validation_end(self, trainer, pl_module): ...
    def on_validation_epoch_start(self, trainer, pl_module): ...
    def on_validation_epoch_end(self, trainer, pl_module): ...
    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0): ...
    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0): ...
    def on_test_start(self, trainer, pl_module): ...
    def on_test_end(self, trainer, pl_module): ...
    def on_test_epoch_start(self, trainer, pl_module): ...
    def on_test_epoch_end(self, trainer, pl_module): ...
    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0): ...
    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0): ...
    def on_predict_start(self, trainer, pl_module): ...
    def on_predict_end(self, trainer, pl_module): ...
    def on_predict_epoch_start(self, trainer, pl_module): ...
    def on_predict_epoch_end(self, trainer, pl_module): ...
    def on_predict_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0): ...
    def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0): ...
    def on_before_zero_grad(self, trainer, pl_module, optimizer): ...
    def on_before_backward(self, trainer, pl_module, loss): ...
    def on_after_backward(self, trainer, pl_module): ...
    def on_before_optimizer_step(self, trainer, pl_module, optimizer): ...
    def on_exception(self, trainer, pl_module, exception): ...

    def state_dict(self):
        return {"seen": 1}

    def load_state_dict(self, state_dict): ...
    def on_save_checkpoint(self, trainer, pl_module, checkpoint): ...
    def on_load_checkpoint(self, trainer, pl_module, checkpoint): ...


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = None

    def prepare_data(self): ...
    def setup(self, stage): ...

    def configure_model(self):
        if self.net is None:
            self.net = nn.Linear(4, 1)

    def configure_callbacks(self):
        return [Watch()]

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return {"loss": loss, "rows": len(x)}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("val_loss", loss)
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.mse_loss(self.net(x), y))

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        x, _ = batch
        return self.net(x)

    def on_fit_start(self): ...
    def on_fit_end(self): ...
    def on_train_start(self): ...
    def on_train_end(self): ...
    def on_train_epoch_start(self): ...
    def on_train_epoch_end(self): ...
    def on_train_batch_start(self, batch, batch_idx): ...
    def on_train_batch_end(self, outputs, batch, batch_idx): ...
    def on_validation_start(self): ...
    def on_validation_end(self): ...
    def on_validation_epoch_start(self): ...
    def on_validation_epoch_end(self): ...
    def on_validation_batch_start(self, batch, batch_idx, dataloader_idx=0): ...
    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0): ...

    def on_validation_model_eval(self):
        super().on_validation_model_eval()

    def on_validation_model_train(self):
        super().on_validation_model_train()

    def on_validation_model_zero_grad(self):
        super().on_validation_model_zero_grad()

    def on_test_start(self): ...
    def on_test_end(self): ...
    def on_test_epoch_start(self): ...
    def on_test_epoch_end(self): ...
    def on_test_batch_start(self, batch, batch_idx, dataloader_idx=0): ...
    def on_test_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0): ...

    def on_test_model_eval(self):
        super().on_test_model_eval()

    def on_test_model_train(self):
        super().on_test_model_train()

    def on_predict_start(self): ...
    def on_predict_end(self): ...
    def on_predict_epoch_start(self): ...
    def on_predict_epoch_end(self): ...
    def on_predict_batch_start(self, batch, batch_idx, dataloader_idx=0): ...
    def on_predict_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0): ...

    def on_predict_model_eval(self):
        super().on_predict_model_eval()

    def on_before_zero_grad(self, optimizer): ...
    def on_before_backward(self, loss): ...
    def on_after_backward(self): ...
    def on_before_optimizer_step(self, optimizer): ...

    def backward(self, loss):
        super().backward(loss)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler, metric):
        super().lr_scheduler_step(scheduler, metric)

    def on_save_checkpoint(self, checkpoint): ...
    def on_load_checkpoint(self, checkpoint): ...
    def teardown(self, stage): ...


class Manual(Module):
    """Two optimizers and a scheduler, stepped in the training step."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(4, 1)
        self.automatic_optimization = False

    def configure_optimizers(self):
        first = torch.optim.SGD(self.net.parameters(), lr=0.1)
        second = torch.optim.SGD(self.other.parameters(), lr=0.05)
        return [first, second], [torch.optim.lr_scheduler.StepLR(first, 1)]

    def training_step(self, batch, batch_idx):
        x, y = batch
        for number, (optimizer, net) in enumerate(
            zip(self.optimizers(), (self.net, self.other), strict=True)
        ):
            self.toggle_optimizer(optimizer)
            loss = F.mse_loss(net(x), y)
            self.log(f"loss_{number}", loss)
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()


def make_trainer(**options):
    return L.Trainer(callbacks=[Hooks()], log_every_n_steps=1, **options)


def main(max_epochs=2, **trainer_options):
    L.seed_everything(7)
    model, data = Module(), Data()
    trainer = make_trainer(max_epochs=max_epochs, gradient_clip_val=1.0, **trainer_options)
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data)
    trainer.predict(model, datamodule=data)
    return trainer, model


def main_accumulated(max_epochs=2, **trainer_options):
    """Gradients accumulate over two batches, three batches an epoch."""
    L.seed_everything(7)
    model, options = Module(), {"gradient_clip_val": 1.0, "accumulate_grad_batches": 2}
    trainer = make_trainer(max_epochs=max_epochs, **options, **trainer_options)
    trainer.fit(model, datamodule=Data())
    return trainer, model


def main_manual(max_epochs=2, **trainer_options):
    """Manual optimization."""
    L.seed_everything(7)
    model = Manual()
    trainer = make_trainer(max_epochs=max_epochs, **trainer_options)
    trainer.fit(model, datamodule=Data())
    return trainer, model


def main_resumed(max_epochs=2, **trainer_options):
    """A second Trainer goes on from the first one's checkpoint."""
    L.seed_everything(7)
    first = make_trainer(max_epochs=1, gradient_clip_val=1.0, **trainer_options)
    first.fit(Module(), datamodule=Data())
    path = first.checkpoint_callback.best_model_path

    model, data = Module(), Data()
    options = {"gradient_clip_val": 1.0, "num_sanity_val_steps": 0}
    trainer = make_trainer(max_epochs=max_epochs, **options, **trainer_options)
    trainer.fit(model, datamodule=data, ckpt_path=path)
    trainer.validate(model, datamodule=data, ckpt_path=path)
    return trainer, model
