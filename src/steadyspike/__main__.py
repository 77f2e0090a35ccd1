"""``python -m steadyspike`` is the command ``steadyspike``."""

from steadyspike_command import main

if __name__ == "__main__":
    main()
