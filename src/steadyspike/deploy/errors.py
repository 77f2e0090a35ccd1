"""What `steadyspike.deploy` raises when a model or a file cannot be used."""


class CannotFold(ValueError):
    """The model cannot become a network of binary spikes; the message names the place and what would help."""
