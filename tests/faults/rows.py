"""What a run must live through: the faults by number, and what must happen; docs/reliability.md shows them.

A test that shows row n is marked ``@pytest.mark.fault(n)``.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One fault."""

    number: int
    fault: str
    outcome: str


_ROWS = [
    (
        "SIGKILL between two steps, whichever they are",
        "Resumed, the run ends bit-identical: weights, optimizer state, metrics, order of the samples.",
    ),
    (
        "SIGKILL at any file operation of a save",
        "The next start goes on from the newest committed checkpoint and sweeps what is half-written. "
        "It never fails.",
    ),
    (
        "SIGKILL of one rank in the midst of a save",
        "All ranks end within 10 seconds. The message names the rank and the signal. "
        "Nothing is half-committed.",
    ),
    (
        "SIGKILL while an old checkpoint is being deleted",
        "The one that is half-deleted is never gone on from.",
    ),
    ("SIGKILL while a checkpoint is written in the background", "The checkpoint before it is intact."),
    (
        "The background writer fails, as on a full disk",
        "It is told within a step, training's state is untouched, and the exit code is not 0; with "
        '`on_save_error="warn"` it is said and the run goes on.',
    ),
    (
        "SIGTERM to any one rank, or to the whole process group, loader workers included",
        "All ranks stop at one agreed step with a checkpoint, and a resume is exact. A single process and "
        "our launcher exit 143; under another launcher its own code stands.",
    ),
    (
        "SIGTERM while validating, saving, waiting for data, or before step 1",
        "The same.",
    ),
    ("A second signal", "The processes end at once, and no checkpoint is torn."),
    (
        "No room on the disk at a save",
        "The error has the bytes needed and free. The staging folder is removed, older checkpoints are "
        "kept, and all ranks agree.",
    ),
    ("A run folder that cannot be written", "It is told before step 1."),
    (
        "The run folder and TMPDIR are on different file systems",
        "A checkpoint is staged beside its target, so that one rename commits it.",
    ),
    (
        "A file of a checkpoint cut, missing, or with one byte flipped; a manifest empty or cut",
        'It is named, a file with what was expected and found. `resume="auto"` and `"latest"` take the '
        "good one before it and say so; an explicit path raises.",
    ),
    (
        "A pickle in the place of any file of a checkpoint",
        "Nothing of it is run, and the file is named.",
    ),
    (
        "A manifest that names `../../x`, an absolute path or a symbolic link",
        "The checkpoint is refused.",
    ),
    (
        "A checkpoint of a newer format version",
        "It is refused with both versions. What released versions wrote is read.",
    ),
    (
        "A loss that is NaN, or gradients alone that are, on one rank",
        "All ranks stop before the optimizer's step. Rank, step and samples are named, and no checkpoint "
        'has a NaN. `nonfinite="raise"` and `"skip"` hold on all ranks.',
    ),
    (
        "An exception in the user's code on one rank",
        "Its traceback is what is printed last. The others end within 10 seconds, the exit code is not 0, "
        "and `on_exception` is called once.",
    ),
    (
        "An exception inside `on_exception`, `on_teardown` or a logger",
        "The first error is the one that is raised, and the other callbacks are closed all the same.",
    ),
    (
        "A rank that hangs, asleep or stopped",
        "It is named within its deadline, with the stacks of all ranks that can still write theirs, and "
        "everything is ended.",
    ),
    (
        "A loader worker that is killed, or raises for one sample",
        "The worker and the sample's index are named. A resume reads that batch again.",
    ),
    (
        "Ranks with uneven data; fewer samples than ranks; a loader without a batch",
        "The results of the first two are exact. The third is an error before step 1.",
    ),
    (
        "A resume on another number of ranks, or under another strategy",
        "The checkpoint loads, the order of the samples stays, and the losses agree to 1e-12 in fp64. What "
        "cannot be exact is said.",
    ),
    (
        "A resume with another batch size or accumulation",
        "No sample of the epoch is lost, and none is read twice.",
    ),
    ("A resume with another dataset", 'It is refused, unless `allow="data"` says so by name.'),
    (
        "A resume with another model, other optimizers or other callbacks",
        "One report has all differences, and nothing is matched by its position.",
    ),
    (
        "A port in use; garbage in RANK or WORLD_SIZE",
        "A local launch takes another port. The variable is named with its value.",
    ),
    (
        "Two runs that are given one folder",
        "The second is refused; host and process of the first are named.",
    ),
    (
        "A step that runs out of memory",
        "The error says what to try, with numbers of this run, and nothing is half-applied.",
    ),
    ("SIGKILL of the launcher", "No rank outlives it."),
    (
        "Twenty fits in one process, interrupted ones among them",
        "No thread, file descriptor or signal handler is left behind.",
    ),
    (
        "A rank that crashes under `max_restarts`",
        "The ranks start again and go on from the last checkpoint. The final weights are exact.",
    ),
]

ROWS = [Row(number, *row) for number, row in enumerate(_ROWS, 1)]
