"""Small labelled files that a tiny model learns in seconds."""

import random
from pathlib import Path

WORDS = ["the", "film", "is", "a", "cat", "dog", "sat", "ran", "very"]


def write_sst2(
    folder: Path, num_train: int = 48, num_validation: int = 20, seed: int = 0
) -> tuple[str, str, str]:
    """Files of SST-2's layout: a text is 1 where every second word is "good", and 0 where "bad"."""
    draw = random.Random(seed)

    def row() -> tuple[str, int]:
        label = draw.randrange(2)
        words = draw.choices(WORDS, k=draw.randrange(1, 5))
        return " ".join(f"{word} {('bad', 'good')[label]}" for word in words), label

    def write(name: str, lines: list[str]) -> str:
        path = folder / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    folder.mkdir(parents=True, exist_ok=True)
    train, validation = (["sentence\tlabel", *("{}\t{}".format(*row()) for _ in range(n))]
                         for n in (num_train, num_validation))  # fmt: skip
    test = ["index\tsentence", *(f"{index}\t{row()[0]}" for index in range(7))]
    return write("train.tsv", train), write("dev.tsv", validation), write("test.tsv", test)
