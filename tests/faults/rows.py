"""The faults by number, and what must happen; docs/evidence/reliability.md shows them.

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
        "SIGKILL between any two steps",
        "The resumed run ends bit-identical: weights, optimizer state, metrics, order of the samples.",
    ),
    (
        "SIGKILL at any file operation of a save",
        "The next start resumes from the newest committed checkpoint and removes partial files. "
        "It never fails.",
    ),
    (
        "SIGKILL of one rank during a save",
        "All ranks end, and none waits for the one that is gone. The message names the rank and the "
        "signal. No partial checkpoint is committed.",
    ),
    (
        "SIGKILL while an old checkpoint is being deleted",
        "A partly deleted checkpoint is never resumed from.",
    ),
    ("SIGKILL while a checkpoint is written in the background", "The checkpoint before it is intact."),
    (
        "The background writer fails, as on a full disk",
        "It is reported within a step, the training state is not changed, and the exit code is not 0; with "
        '`on_save_error="warn"` it is reported and the run continues.',
    ),
    (
        "SIGTERM to any one rank, or to the whole process group, loader workers included",
        "All ranks stop at one agreed step with a checkpoint, and a resume is exact. A single process and "
        "paceline's launcher exit with 143; another launcher keeps its own exit code.",
    ),
    (
        "SIGTERM while validating, saving, waiting for data, or before step 1",
        "The same as above.",
    ),
    ("A second signal", "The processes end immediately, and no checkpoint is damaged."),
    (
        "No room on the disk at a save",
        "The error gives the required and the free bytes. The staging folder is removed, earlier "
        "checkpoints are kept, and all ranks agree.",
    ),
    ("A run folder that cannot be written", "It is an error before step 1."),
    (
        "The run folder and TMPDIR are on different file systems",
        "A checkpoint is staged next to its target, so that one rename commits it.",
    ),
    (
        "A file of a checkpoint cut, missing, or with one byte flipped; a manifest empty or cut",
        "The checkpoint is named, and the file with the expected and the found value. "
        '`resume="auto"` and `"latest"` use the previous valid checkpoint, with a message; a path raises.',
    ),
    (
        "A pickle in place of any file of a checkpoint",
        "Nothing in it is executed, and the file is named.",
    ),
    (
        "A manifest that names `../../x`, an absolute path or a symbolic link",
        "The checkpoint is refused.",
    ),
    (
        "A checkpoint of a newer format version",
        "It is refused, naming both versions. Checkpoints of released versions are read.",
    ),
    (
        "A NaN in the loss, or only in gradients, on one rank",
        "All ranks stop before the optimizer step. Rank, step and samples are named, and no checkpoint "
        'contains a NaN. `nonfinite="raise"` and `"skip"` act on all ranks.',
    ),
    (
        "An exception in the user's code on one rank",
        "Its traceback is printed last. The others are ended, wherever they are; the exit code is not 0, "
        "and `on_exception` is called once.",
    ),
    (
        "An exception inside `on_exception`, `on_teardown` or a logger",
        "The first error is raised, and the other callbacks are still closed.",
    ),
    (
        "A rank that hangs, asleep or stopped",
        "It is named within its deadline, with the stacks of all ranks that can still write them, and "
        "all processes are ended.",
    ),
    (
        "A loader worker that is killed, or a sample that raises",
        "The worker and the index of the sample are named. A resumed run reads that batch again.",
    ),
    (
        "Ranks with uneven data; fewer samples than ranks; a loader without a batch",
        "The results of the first two are exact. The third is an error before step 1.",
    ),
    (
        "A resume on another number of ranks, or under another strategy",
        "The checkpoint loads, the order of the samples is the same, and the losses agree to 1e-12 in "
        "fp64. A message says what cannot be exact.",
    ),
    (
        "A resume with another batch size or accumulation",
        "No sample of the epoch is lost, and none is read twice.",
    ),
    ("A resume with another dataset", 'It is refused, unless `allow="data"` is passed.'),
    (
        "A resume with another model, other optimizers or other callbacks",
        "One error lists all differences, and nothing is matched by position.",
    ),
    (
        "A port in use; an invalid value of RANK or WORLD_SIZE",
        "A local launch uses another port. The variable is named with its value.",
    ),
    (
        "Two runs in one folder",
        "The second is refused; host and process id of the first are named.",
    ),
    (
        "A step that runs out of memory",
        "The error says what to try, with numbers of this run, and no update is applied in part. Under "
        '`batch_size="auto"` the step is repeated in smaller micro-batches, and the run is exact.',
    ),
    ("SIGKILL of the launcher", "No rank outlives it."),
    (
        "Twenty fits in one process, some of them interrupted",
        "No thread, file descriptor or signal handler remains.",
    ),
    (
        "A rank that crashes under `max_restarts`",
        "The ranks start again and resume from the last checkpoint. The final weights are exact.",
    ),
    (
        "A file in a checkpoint's folder that its manifest does not list: tensors of the same names, junk, "
        "a symbolic link, a named pipe",
        "It is never opened. One warning names it, and `paceline checkpoint verify` does.",
    ),
    (
        "SIGKILL at any file operation while a step is saved again, after its validation was cut short",
        "The old or the new checkpoint is whole, and the resumed run ends bit-identical.",
    ),
    (
        "EIO or ESTALE at any file operation of a save or a resume",
        "It is tried again after 0.1, 0.5 and 2 seconds, then raised. A checkpoint is set aside only for a "
        "checksum, a size or a format that does not match.",
    ),
    (
        '`resume=` with the path of another run\'s newest checkpoint, or `"best"`',
        "A new run begins, and no file of the source changes.",
    ),
    (
        "SIGTERM to one rank at any point after the last step: while the run closes, after `fit`, or while "
        "the process ends",
        "The exit code is 143 or 0, without a connection error, and the run's last checkpoint is whole.",
    ),
    (
        "Streams of unequal length on ranks",
        "Parts of the ranks' own are read to the end of the longest, each sample once. Streams that begin "
        "alike and end apart are an error on every rank, which names what each has read.",
    ),
    (
        "A manifest or state file that was changed and resealed: other types, huge numbers, depth, keys "
        "given twice, unknown kinds",
        "An error names the file and the key; depth is bounded, nothing is imported and no code runs. The "
        "checkpoint is not set aside for a state that an object of the run does not take.",
    ),
    (
        "A config file with aliases that expand without end, another encoding, keys that are no names",
        "One sentence names the file and the line.",
    ),
    (
        "A logger that raises, blocks, or whose server is away",
        "Training is the same in every value. The error is reported once, after ten in a row the logger is "
        "switched off, and the rows it did not get are counted. `metrics.jsonl` has all of them.",
    ),
    (
        "Too few file descriptors for the loader's workers",
        "The limit is named before step 1, with the number of workers that it allows.",
    ),
    (
        "`os.chdir` in the user's code with a relative `run_dir`",
        "Everything is written to the folder that was chosen when the Trainer was made.",
    ),
    (
        "A host is cut off from the network within a step",
        "Within the deadline all launchers name it and its ranks. When it returns, the run resumes, "
        "bit-identical.",
    ),
    (
        "A host leaves or joins a job of elastic size",
        "The run continues in its folder with the new world size. Each step has the same samples "
        "and, up to the order of sums, the same gradient.",
    ),
    (
        "A job of SLURM is preempted or reaches its time limit",
        "It saves and is requeued once; its next start resumes in the same folder, bit-identical. "
        "A cancelled job stays cancelled.",
    ),
    (
        "A key, token or password in an option, an hparam, a variable, an address or the text of an error",
        "`***` stands in its place in `config.yaml`, `env.json`, manifests, logs, crash files and loggers.",
    ),
    (
        "A disk that is full before the start, or full or read-only under a command or a logger",
        "`fit` ends before step 1 with an error that names the folder; a command ends with one line. A "
        "logger that cannot write is a warning, and training is the same.",
    ),
    (
        "A rank's copy of a weight comes to differ from the other ranks'",
        "Copies are compared after steps 1, 2, 4, 8 ... of a session and before each checkpoint. Every "
        "rank ends with an error that names the parameter, the ranks and the last step with equal weights.",
    ),
    (
        "A file of a run that is emptied, cut, of another form, or has foreign lines or bytes",
        "What reads it continues without what it holds, or ends with one sentence that names it. A run "
        "resumes whatever became of its `env.json`, `config.yaml` and `metrics.jsonl`.",
    ),
    (
        "Parameters are unfrozen, frozen, added, replaced, tied or put into a parameter group under way",
        "Each strategy ends with the weights that one device has, or with an error in that step that names "
        "the parameters. With `ddp` it is always the same weights.",
    ),
    (
        "A run that had unfrozen parameters, added a parameter group or reshaped a buffer is resumed",
        "It continues with the same parameters trained, the same groups and buffers. What a run has "
        "changed and no resume can make again is a warning at the next save.",
    ),
    (
        "A folder of another's run whose config or `env.json` names a command, a function or a class",
        "What is not of the kind that its place needs is never called. Commands that look call nothing; "
        "`replay` and `diff --replay` show the command, and start it with `--trust` only.",
    ),
    (
        "Gradients that come in parts, or are worked on before the update: a block used twice in a "
        "reentrant checkpoint, several backwards in a step, hand-written clipping, a SAM, ranks that go "
        "backward unlike",
        "Every strategy ends with the weights of one device, or with an error in step 1 that names the "
        "parameter or the call, and the way that works.",
    ),
    (
        "Ranks that disagree on whether `training_step` returns a weight, or on the optimizers' groups",
        "In step 1, or before it, every rank ends with an error that names the rank; in a later step the "
        "rank that does otherwise ends the job.",
    ),
]

ROWS = [Row(number, *row) for number, row in enumerate(_ROWS, 1)]
