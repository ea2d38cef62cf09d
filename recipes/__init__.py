"""Ready runs, written with the public face only. ``paceline recipes`` lists them.

A recipe is a module with ``Config`` (a subclass of ``paceline.config.RunConfig``), ``PRESETS`` (values
for it by name) and ``build(config)``, which returns an ``Experiment``. The table is all that is read until
one is chosen.
"""

RECIPES = {
    "digits": (
        "digits",
        "a small network on handwritten digits (seconds on a CPU): copy it to begin with",
    ),
    "vit-cifar10": (
        "vit_cifar10",
        "Vision Transformer on CIFAR-10 (85.8 M parameters; preset=tiny trains on a CPU)",
    ),
}
