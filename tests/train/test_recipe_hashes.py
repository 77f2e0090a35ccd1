"""The packaged recipes keep their names and what they resolve to, however their files are written.

python -m tests.train.test_recipe_hashes    # writes the hashes again, after a recipe was changed on purpose
"""

import hashlib
import json
from pathlib import Path

from steadyspike.train.recipe import load_recipe, recipe_names

FILE = Path(__file__).with_name("recipe_hashes.json")


def hashes() -> dict[str, str]:
    """Name -> hash of everything that differs from a default."""
    recipes = {name: load_recipe(name).model_dump(exclude_defaults=True) for name in recipe_names(bases=True)}
    return {n: hashlib.sha256(json.dumps(r, sort_keys=True).encode()).hexdigest()[:16] for n, r in recipes.items()}


def test_every_recipe_is_what_it_was():
    now = hashes()
    changed = [name for name, value in json.loads(FILE.read_text()).items() if now.get(name) != value]
    assert not changed


if __name__ == "__main__":
    FILE.write_text(json.dumps(hashes(), indent=0) + "\n")
