"""`python -m blackout <command> ...`."""

from blackout.cli.main import main

if __name__ == "__main__":
    main()
