"""Fine-tune a sequence classifier with a loop in the style of the Hugging Face examples."""

import argparse
import json
import math
import os
import pydoc_data.topics
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from tqdm.auto import tqdm


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class Encoder(nn.Module):
    def __init__(self, vocab_size=128, hidden_size=32, num_labels=2):
        super().__init__()
        self.config = {"vocab_size": vocab_size, "hidden_size": hidden_size, "num_labels": num_labels}
        self.embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(hidden_size, 4, 64, dropout=0.0, batch_first=True)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, input_ids, attention_mask, labels=None):
        hidden = self.layer(self.embeddings(input_ids), src_key_padding_mask=~attention_mask)
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        logits = self.classifier((hidden * mask).sum(1) / mask.sum(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Output(loss, logits)

    def save_pretrained(self, folder):
        os.makedirs(folder, exist_ok=True)
        torch.save(self.state_dict(), os.path.join(folder, "pytorch_model.bin"))


def load_data():
    lines = [
        line.strip()
        for topic in sorted(pydoc_data.topics.topics)
        for line in pydoc_data.topics.topics[topic].splitlines()
        if 20 < len(line.strip()) < 60
    ][:900]
    return [{"text": line, "label": int("the" in line.split())} for line in lines]


def collate(examples):
    ids = [[min(ord(c), 127) for c in e["text"]] for e in examples]
    longest = max(map(len, ids))
    input_ids = torch.tensor([i + [0] * (longest - len(i)) for i in ids])
    return {
        "input_ids": input_ids,
        "attention_mask": input_ids != 0,
        "labels": torch.tensor([e["label"] for e in examples]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--num_train_epochs", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=None)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--output_dir", default="out")
    args = parser.parse_args()

    torch.manual_seed(13)
    torch.set_default_dtype(getattr(torch, args.dtype))
    data = load_data()
    train_dataloader = DataLoader(
        data[:700], shuffle=True, collate_fn=collate, batch_size=args.per_device_train_batch_size
    )
    eval_dataloader = DataLoader(data[700:], collate_fn=collate, batch_size=64)

    model = Encoder()
    no_decay = ["bias", "norm"]
    optimizer_grouped_parameters = [
        {
            "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
            "weight_decay": args.weight_decay,
        },
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = AdamW(optimizer_grouped_parameters, lr=5e-4)

    num_update_steps_per_epoch = len(train_dataloader)
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * num_update_steps_per_epoch
    else:
        args.num_train_epochs = math.ceil(args.max_train_steps / num_update_steps_per_epoch)
    warmup = args.max_train_steps // 10
    lr_scheduler = LambdaLR(
        optimizer,
        lambda step: min((step + 1) / (warmup + 1), max(0.0, (args.max_train_steps - step) / args.max_train_steps)),
    )

    progress_bar = tqdm(range(args.max_train_steps))
    completed_steps = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        total_loss = 0.0
        for batch in train_dataloader:
            outputs = model(**batch)
            total_loss += float(outputs.loss)
            outputs.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            progress_bar.update(1)
            completed_steps += 1
            if completed_steps >= args.max_train_steps:
                break

        model.eval()
        correct = 0
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            correct += (outputs.logits.argmax(-1) == batch["labels"]).sum().item()
        print(f"epoch {epoch}: mean train loss {total_loss / len(train_dataloader):.4f}")
        print(f"epoch {epoch}: {{'accuracy': {correct / len(eval_dataloader.dataset)}}}")

    model.save_pretrained(args.output_dir)
    with open(os.path.join(args.output_dir, "all_results.json"), "w") as f:
        json.dump({"eval_accuracy": correct / len(eval_dataloader.dataset)}, f)


if __name__ == "__main__":
    main()
