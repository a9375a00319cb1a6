"""Make the tiny models: random weights, a tokenizer of their own, a chat template; nothing is downloaded.

    python make_models.py FOLDER

The text that they write means nothing, but it depends on every word of the prompt. Weights are seeded: two runs
give the same bytes. Runs in the venv with vLLM, which has what it needs.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2MoeConfig

SEED = 1024
VOCABULARY = 2048
END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    # Far above the usual 0.02: with that, greedy decoding soon repeats one token whatever the prompt was.
    "initializer_range": 0.12,
    "bos_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
"""Multiples of what vLLM's kernels for CPUs want: 32 for every dimension of an expert."""

EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MODULES = ("argparse", "ast", "datetime", "difflib", "email/message", "inspect", "ipaddress", "pathlib", "typing")
"""Modules of the standard library from whose text the tokenizer learns English and code."""

CHINESE = (
    "你是谁？请介绍一下预填充与解码分离的部署方式。大模型推理服务器的节点、显存和网络都正常吗？"
    "今天天气很好，我们去公园散步。"
)


def corpus() -> Iterator[str]:
    """Yield the text that the tokenizer is trained on."""
    yield CHINESE * 50
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in MODULES:
        yield (library / f"{module}.py").read_text(encoding="utf-8")


def save_tokenizer(folder: Path) -> None:
    """Train byte-level BPE with exactly the model's vocabulary, so that every token has a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer=trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        sys.exit(f"the tokenizer learned {tokenizer.get_vocab_size()} tokens in place of {VOCABULARY}")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT,
    )
    fast.save_pretrained(folder)


def save(folder: Path, config: Qwen2Config | Qwen2MoeConfig) -> None:
    """Make one model, complete or not at all."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_tokenizer(part)
    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(part)
    (part / "model.safetensors").chmod(0o644)  # Written for its owner only.
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    save(target / "tiny-qwen2", Qwen2Config(**SIZES))
    save(target / "tiny-qwen2-moe", Qwen2MoeConfig(**SIZES, **EXPERTS))
