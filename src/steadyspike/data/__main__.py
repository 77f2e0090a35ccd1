"""`python -m steadyspike.data list` and `python -m steadyspike.data show NAME`."""

from steadyspike.data.commands import app

if __name__ == "__main__":
    app(prog_name="python -m steadyspike.data")
