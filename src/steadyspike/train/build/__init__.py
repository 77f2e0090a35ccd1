"""From a recipe to the objects it names: network, objective, optimizer, data, Lightning modules."""
