"""Asks the library's one set of rules (`nn.compose`) whether a recipe's norm, neuron and loss belong together."""

from __future__ import annotations

from steadyspike.nn.compose import refusals
from steadyspike.nn.loss import Objective
from steadyspike.nn.neurons import NeuronSpec
from steadyspike.train.recipe import Recipe, RecipeError


def check_combination(recipe: Recipe, neuron: NeuronSpec, objective: Objective) -> None:
    """Raises RecipeError with the reasons for which `compose` refuses the same parts."""
    reasons = refusals(recipe.norm.name, neuron, objective, recipe.data.timesteps)
    if reasons:
        terms = "".join(f", loss.terms.{name}" for name in recipe.loss.terms)
        parts = (
            f"neuron.name = {recipe.neuron.name!r}, norm.name = {recipe.norm.name!r}, loss.name = {recipe.loss.name!r}"
        )
        raise RecipeError(
            f"this combination is refused ({parts}{terms}, data.timesteps = {recipe.data.timesteps}): "
            + "; ".join(reasons)
        )
