"""`python -m lossbench`."""

from lossbench.cli import main

if __name__ == "__main__":
    main()
