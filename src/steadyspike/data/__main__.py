"""`python -m steadyspike.data list` and `python -m steadyspike.data show NAME`."""

from steadyspike.commands.data import app

if __name__ == "__main__":
    app(prog_name="python -m steadyspike.data")
