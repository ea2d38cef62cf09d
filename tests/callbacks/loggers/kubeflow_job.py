"""A fit on ranks whose logger reports to the server that the environment names."""

from helpers.small_net import Net, data

from paceline import Trainer
from paceline.callbacks.loggers import kubeflow

if __name__ == "__main__":
    kubeflow._EVERY = 600  # a rank reports its first row and the end
    Trainer(max_epochs=2, log_every=1, progress=False, accelerator="cpu", name="n", strategy="ddp").fit(
        Net(), data()
    )
