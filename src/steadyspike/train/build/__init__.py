"""Turns a recipe into the objects that it names: network, objective, optimizer, data, Lightning modules."""
