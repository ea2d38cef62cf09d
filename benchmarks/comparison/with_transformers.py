import task
from transformers import Trainer, TrainingArguments, set_seed

options = task.options


def accuracy(prediction):
    correct = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": correct.mean()}


set_seed(0)
arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=options.epochs,
    per_device_train_batch_size=options.batch // (options.devices or 1),
    per_device_eval_batch_size=2,
    learning_rate=1e-2,
    weight_decay=0.01,
    lr_scheduler_type="linear",
    max_grad_norm=0.0,
    save_steps=options.save,
    enable_jit_checkpoint=True,
    restore_callback_states_from_checkpoint=True,
    debug="underflow_overflow" if options.guard else "",  # own: nan
    fsdp="full_shard" if options.strategy == "fsdp" else None,
    label_names=["y"],
    remove_unused_columns=False,
    report_to=[],
    use_cpu=True,
)
net = task.Net()
trainer = Trainer(
    net,
    arguments,
    train_dataset=task.Samples(options.samples),
    eval_dataset=task.Samples(7),
    compute_metrics=accuracy,
)
if options.evaluate:
    found = trainer.evaluate()
    task.report(accuracy=found["eval_accuracy"], loss=found["eval_loss"])
else:
    trainer.train(resume_from_checkpoint=options.resume)
    task.done(trainer.model_wrapped)
