"""`python -m rollbus`: the command line."""

from rollbus.cli import main

if __name__ == "__main__":
    main()
