"""`beambert COMMAND`: every command of both programs, which import what they need."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tokenizer  # noqa: F401  (before a folder's own files can be found, see main)
from pipeline.cli import COMMANDS as PIPELINE
from pipeline.cli import leave_out_beams_client
from pipeline.command_line.program import Command, load, run_program
from pipeline.interrupts import leave_while_importing
from trainer.cli import COMMANDS as TRAINER

DESCRIPTION = """\
Raw text to shards of BERT pretraining instances, and shards to a trained BERT. On several GPUs:
  deepspeed --num_gpus 8 --no_python beambert pretrain --config bert-base --data DIR --output RUN"""
_OF_BOTH = PIPELINE.keys() & TRAINER.keys()
COMMANDS = {
    **{f"{name}-data" if name in _OF_BOTH else name: command for name, command in PIPELINE.items()},
    **TRAINER,
    "completion": Command(
        summary="print what completes these commands in a shell",
        settings="trainer.beambert:CompletionSettings",
        function="trainer.beambert:completion",
        positionals=("shell",),
    ),
}
"""A name that both programs have is the trainer's; the builder's ends in -data."""

_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
_SCRIPT = """\
_beambert() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  case ${{COMP_WORDS[1]}} in
{flags}
  esac
  case ${{COMP_WORDS[1]}}:$before in
{choices}
    *:--config) words="{recipes}";;
  esac
  [ "$COMP_CWORD" = 1 ] && words="{commands}"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _beambert beambert
"""


@dataclass(frozen=True)
class CompletionSettings:
    """Prints what completes commands, flags, recipes and files: eval "$(beambert completion bash)".

    Attributes:
        shell: The shell that reads it.
    """

    shell: Literal["bash", "zsh"]


def completion(asked: CompletionSettings, _: Sequence[str]) -> None:
    """`beambert completion bash`."""
    from pipeline.command_line.hints import choices_of, find_hint, kind_of, known_keys
    from pipeline.command_line.words import recipes

    shell, flags, choices = asked.shell, [], []
    for name, command in COMMANDS.items():
        settings = load(command.settings)
        keys = known_keys(settings)
        words = " ".join(f"--{key}" for key in ["config", *keys])
        flags.append(f'    {name}) words="{words} --help";;')
        for key in keys:
            hint = kind_of(find_hint(settings, key))
            known = ["true", "false"] if hint is bool else choices_of(hint)
            choices += [f'    {name}:--{key}) words="{" ".join(known)}";;'] if known else []
    script = _SCRIPT.format(
        flags="\n".join(flags),
        choices="\n".join(choices),
        commands=" ".join([*COMMANDS, "help"]),
        recipes=" ".join(recipes()),
    )
    print(_ZSH + script if shell == "zsh" else script, end="")


def main() -> int:
    """Runs the command that the process's arguments name."""
    leave_while_importing()
    # A file called pipeline.py where somebody works hides nothing here or in a worker; filters
    # there are found.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    sys.path.append(os.getcwd())
    leave_out_beams_client()
    return run_program("beambert", DESCRIPTION, COMMANDS)
