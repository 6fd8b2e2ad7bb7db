"""`python -m blackout <command> ...`."""

from blackout.programs.main import main

if __name__ == "__main__":
    main()
