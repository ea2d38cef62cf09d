"""Makes a Trainer of each set of arguments, as a config file has them; prints the world of each."""

import json
import sys

from paceline.config import RunConfig

printed = {}
for name, arguments in json.loads(sys.argv[1]).items():
    trainer = RunConfig(trainer=arguments | {"accelerator": "cpu"}).make_trainer()  # of this machine
    printed[name] = [trainer.world_size, trainer.strategy.name, trainer.strategy.precision.name]
print(json.dumps(printed))
