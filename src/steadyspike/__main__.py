"""``python -m steadyspike`` is the command ``steadyspike``."""

from steadyspike.cli import main

if __name__ == "__main__":
    main()
