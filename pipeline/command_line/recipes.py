"""Files of `--config`: one on disk, or a recipe that is installed with the program."""

from pathlib import Path

from pipeline.command_line.names import suggest

_FOLDER = Path(__file__).parent / "recipes"
"""A link to configs/ in a checkout, a copy of it in a wheel."""


def find_config(name: str) -> Path:
    """The file of that name, otherwise the recipe, such as bert-large or configs/pretrain/bert-large.yaml.

    Raises:
        FileNotFoundError: Neither is there; names the nearest recipes.
    """
    if Path(name).is_file():
        return Path(name)
    recipes = _recipes()
    if found := recipes.get(name) or recipes.get(_stem_in_configs(name)):
        return found
    if "." in name or "/" in name:
        raise FileNotFoundError(f"no configuration file {name}")
    nearest = suggest(name, recipes)
    known = (
        f"did you mean {' or '.join(nearest)}?"
        if nearest
        else f"the recipes are {', '.join(recipes)}"
    )
    raise FileNotFoundError(f"no configuration file or recipe {name}; {known}")


def recipe_names() -> list[str]:
    """The names of all recipes, which are those of their files."""
    return list(_recipes())


def _recipes() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_FOLDER.glob("*/*.yaml"))}


def _stem_in_configs(name: str) -> str:
    """bert-large of configs/pretrain/bert-large.yaml, where the recipe lies in that folder; otherwise nothing."""
    path = Path(name)
    is_there = path.parts[:1] == ("configs",) and (_FOLDER / Path(*path.parts[1:])).is_file()
    return path.stem if is_there else ""
