import task
from transformers import Trainer, TrainingArguments, set_seed


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


set_seed(0)
model, train, validation = task.vit()
arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=task.EPOCHS,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=32,
    learning_rate=1e-3,
    weight_decay=0.0,
    lr_scheduler_type="constant",
    max_grad_norm=1.0,
    logging_steps=10,
    eval_strategy="epoch",
    save_strategy="epoch",
    train_sampling_strategy="sequential",
    report_to="tensorboard",
    use_cpu=True,
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=train, eval_dataset=validation, compute_metrics=accuracy
)
trainer.train()
task.report(trainer.evaluate()["eval_accuracy"])
