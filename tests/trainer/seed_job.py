"""A script that seeds once, and gives its Trainer no seed.

python seed_job.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from helpers.small_net import Net, data

from paceline import Trainer, seed_everything

seed_everything(11)
torch.manual_seed(3)
trainer = Trainer(accelerator="cpu", max_steps=2, progress=False, loggers=False, checkpoint=False)
trainer.fit(Net(), data())
(Path(sys.argv[1]) / f"{trainer.rank}.json").write_text(json.dumps(trainer.settings.seed))
