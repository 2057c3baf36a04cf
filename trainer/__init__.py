"""Shards to checkpoints: streaming, BERT, ZeRO training, export.

Rooms: stream/ reads and packs, model/ is BERT, optim/ moves weights, checkpoints/ saves and goes on, guards/ looks for
what goes wrong, watch/ shows a run; conversion/ speaks Hugging Face's and Google's formats; finetune/, features/,
report/ and doctor/ are commands. Beside them: pretrain.py is the loop, run.py what it needs, engine.py DeepSpeed.

May import torch, deepspeed, tokenizer, pipeline.shards, pipeline.command_line and pipeline.interrupts; never Beam,
nothing else of pipeline.
"""
