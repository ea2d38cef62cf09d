"""Pictures and pages of runs: ``paceline plot`` and ``paceline report``."""
