"""What `steadyspike.deploy` raises when a model or a file cannot be used."""


class CannotFold(ValueError):
    """The model cannot become a network of binary spikes; the message names the place and what would help."""


class DamagedFile(ValueError):
    """A file that was meant to hold a folded network and does not; the message names the file and what is wrong."""
