"""Recipes: everything that decides a run's numbers, as TOML, typed and inherited."""

from steadyspike.train.recipe.identity import PRIVATE
from steadyspike.train.recipe.load import load_recipe, parse
from steadyspike.train.recipe.recipe_catalogue import find_recipe, recipe_names, recipe_path
from steadyspike.train.recipe.schema import Recipe
from steadyspike.train.recipe.table import RecipeError
from steadyspike.train.recipe.toml import dumps

__all__ = [
    "PRIVATE",
    "Recipe",
    "RecipeError",
    "dumps",
    "find_recipe",
    "load_recipe",
    "parse",
    "recipe_names",
    "recipe_path",
]
