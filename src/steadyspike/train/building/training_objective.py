"""Builds the objective (the loss and its terms) that a recipe names."""

from __future__ import annotations

from steadyspike.nn.loss import LOSSES, TERMS, Objective, Term, make_objective
from steadyspike.train.recipe import Recipe, RecipeError
from steadyspike.train.recipe.constructor_options import check_name, check_options, kinds_of, naming


def build_objective(recipe: Recipe, *, static: bool) -> Objective:
    """[loss] with its terms; ``static``: batches are still images [B, ...]."""
    check_name(recipe.loss.name, LOSSES, "loss.name")
    check_options(recipe.loss.options, kinds_of(LOSSES[recipe.loss.name]), "loss.options")
    terms: dict[str, Term] = {}
    for name, options in recipe.loss.terms.items():
        check_name(name, TERMS, "loss.terms")
        check_options(options, kinds_of(TERMS[name]), f"loss.terms.{name}")
        for key in ("weight", "start", "ramp_epochs"):
            if options.get(key, 0) < 0:
                raise RecipeError(f"loss.terms.{name}.{key} = {options[key]} is not valid; it must not be below 0")
        with naming(f"loss.terms.{name}", options):
            terms[name] = TERMS[name](**options)
    with naming("loss.options", recipe.loss.options):
        objective = make_objective(recipe.loss.name, terms, batch_dim=0 if static else 1, **recipe.loss.options)
    for name, term in objective.terms.items():
        assert isinstance(term, Term)
        if recipe.train.checkpointing and term.records:
            raise RecipeError(
                f"loss.terms.{name} looks into layers that would be recomputed; use train.checkpointing = false "
                "(train.save_memory = true works)"
            )
    return objective
