import task
from transformers import Trainer, TrainingArguments, set_seed

set_seed(0)
model, train, validation = task.gpt()
arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=task.EPOCHS,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    learning_rate=1e-3,
    weight_decay=0.0,
    lr_scheduler_type="linear",
    max_grad_norm=1.0,
    logging_steps=10,
    eval_strategy="epoch",
    save_strategy="epoch",
    train_sampling_strategy="sequential",
    report_to="tensorboard",
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=train, eval_dataset=validation)
trainer.train()
task.report(trainer.evaluate()["eval_loss"])
