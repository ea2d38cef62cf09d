from datasets import load_dataset
from trl import KTOConfig, KTOTrainer

arguments = KTOConfig(
    output_dir="trl",
    num_train_epochs=1,
    per_device_train_batch_size=16,
    learning_rate=3e-4,
    weight_decay=0.01,
    lr_scheduler_type="cosine",
    warmup_steps=2,
    max_length=512,
    beta=0.1,
    gradient_checkpointing=False,
    train_sampling_strategy="sequential",
    logging_steps=1,
    save_strategy="epoch",
    report_to="tensorboard",
    use_cpu=True,
    bf16=False,
)
trainer = KTOTrainer(
    model="model",
    args=arguments,
    train_dataset=load_dataset("json", data_files="labelled.jsonl", split="train"),
)
trainer.train()
