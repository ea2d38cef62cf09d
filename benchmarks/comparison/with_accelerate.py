import signal
from pathlib import Path

import task
import torch
from accelerate import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

options = task.options
set_seed(0)
plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT")
accelerator = Accelerator(
    cpu=True,
    fsdp_plugin=plugin if options.strategy == "fsdp" else None,
    dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
)
net = task.Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
loader = DataLoader(
    task.Samples(options.samples),
    options.batch,
    shuffle=True,
    generator=torch.Generator(),  # own: resume
)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, options.epochs * len(loader))
validation = DataLoader(task.Samples(7), 2 * accelerator.num_processes)
net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
loader, validation = accelerator.prepare(loader, validation)


def evaluate():
    net.eval()
    correct, losses = [], []
    for batch in validation:
        with torch.no_grad():
            logits = net(**batch)["logits"]
        logits, labels = accelerator.gather_for_metrics((logits, batch["y"]))
        correct.append(logits.argmax(1) == labels)
        losses.append(cross_entropy(logits, labels, reduction="none"))
    correct, losses = torch.cat(correct), torch.cat(losses)
    task.report(accuracy=correct.float().mean(), loss=losses.mean())


def train():
    step = 0
    if options.resume:
        saved = [int(path.name.removeprefix("step_")) for path in Path("checkpoints").iterdir()]
        step = max(saved)
        accelerator.load_state(f"checkpoints/step_{step}")
    signal.signal(signal.SIGTERM, lambda *_: accelerator.set_trigger())  # own: sigterm
    net.train()
    for epoch in range(step // len(loader), options.epochs):
        loader.set_epoch(epoch)
        for batch in accelerator.skip_first_batches(loader, step % len(loader)):
            loss = net(**batch)["loss"]
            if options.guard and not loss.isfinite():  # own: nan
                raise FloatingPointError(f"step {step + 1}: loss {loss.item()}")  # own: nan
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % options.save == 0:
                accelerator.save_state(f"checkpoints/step_{step}")
            if accelerator.check_trigger():  # own: sigterm
                accelerator.save_state(f"checkpoints/step_{step}")  # own: sigterm
                return  # own: sigterm
    task.done(net)


evaluate() if options.evaluate else train()
accelerator.end_training()
