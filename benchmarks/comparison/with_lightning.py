import lightning as L
import task
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics.classification import MulticlassAccuracy

options = task.options


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = task.Net()
        self.accuracy = MulticlassAccuracy(4, average="micro")

    def configure_model(self):
        if options.strategy == "fsdp":
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch):
        loss = self.net(**batch)["loss"]
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch):
        output = self.net(**batch)
        self.accuracy(output["logits"], batch["y"])
        self.log("val_accuracy", self.accuracy)
        self.log("val_loss", output["loss"], sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        # trainer.estimated_stepping_batches would lose the loader's state (Lightning's #20550)
        steps = options.epochs * -(-options.samples // options.batch)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class RandomState(L.Callback):  # own: resume
    def state_dict(self):  # own: resume
        return {"torch": torch.get_rng_state()}  # own: resume

    def load_state_dict(self, state):  # own: resume
        torch.set_rng_state(state["torch"])  # own: resume


L.seed_everything(0)
module = Classifier()
sharded = ModelParallelStrategy(save_distributed_checkpoint=False)
callbacks = [
    ModelCheckpoint(
        "checkpoints",
        save_last=True,
        every_n_train_steps=options.save,
        save_on_exception=not options.guard,  # at an error of one rank, it would wait for the others
    )
]
callbacks.append(RandomState())  # own: resume
trainer = L.Trainer(
    accelerator="cpu",
    devices=options.devices or "auto",
    strategy=sharded if options.strategy == "fsdp" else "ddp" if task.WORLD > 1 else "auto",
    max_epochs=options.epochs,
    use_distributed_sampler=False,  # own: same, checkpoint
    callbacks=callbacks,
    detect_anomaly=options.guard,  # own: nan
)
if options.evaluate:
    trainer.validate(module, torch.utils.data.DataLoader(task.Samples(7), 2))
    task.report(
        accuracy=trainer.callback_metrics["val_accuracy"], loss=trainer.callback_metrics["val_loss"]
    )
else:
    per_rank = options.batch // (options.devices or 1)
    data = task.Samples(options.samples)
    order = {"shuffle": True}
    sampler = torch.utils.data.DistributedSampler(data, task.WORLD, task.RANK)  # own: same, checkpoint
    order = {"sampler": sampler}  # own: same, checkpoint
    loader = StatefulDataLoader(
        data,
        per_rank,
        **order,
        generator=torch.Generator().manual_seed(0),  # own: resume
    )
    trainer.fit(module, loader, ckpt_path="last" if options.resume else None)
    task.done(module.net)
