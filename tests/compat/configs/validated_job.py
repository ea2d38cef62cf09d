"""Makes a Trainer of each set of arguments, class mappings as objects; prints the world of each."""

import json
import sys

from paceline import Trainer, strategies

printed = {}
for name, arguments in json.loads(sys.argv[1]).items():
    arguments.pop("numa_affinity", None)
    strategy = arguments.get("strategy")
    if isinstance(strategy, dict):
        kind = getattr(strategies, strategy.pop("class"))
        arguments["strategy"] = kind(**strategy)
    arguments["accelerator"] = "cpu"  # of this machine
    trainer = Trainer(**arguments)
    printed[name] = [trainer.world_size, trainer.strategy.name, trainer.strategy.precision.name]
print(json.dumps(printed))
