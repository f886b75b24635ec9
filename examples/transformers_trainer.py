"""FIRE on a small GPT-2, in transformers' Trainer. Needs pip install -e ".[transformers]"."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from fire_core.integrations.transformers import FireCallback
from fire_core.triggers import Every

torch.manual_seed(0)
text = torch.randint(64, (200, 32))
text[:, 1::2] = text[:, ::2]  # every token comes twice
data = [{"input_ids": line, "labels": line} for line in text]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2)
)
# all linear layers, ten steps: which layout helps when is in docs/scales.md
fire = FireCallback(Every(20))
args = TrainingArguments(
    "trained",
    max_steps=50,
    logging_steps=10,
    report_to=[],
    use_cpu=True,
    save_strategy="no",
)
trainer = Trainer(model, args, train_dataset=data, callbacks=[fire])
# the Trainer makes its optimizer later, and hands callbacks None in its place
fire.bind(trainer)
trainer.train()
print(fire.intervention.report.weights["model"])
