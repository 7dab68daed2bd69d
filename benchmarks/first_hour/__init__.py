"""What the first hour on a GPU runs: `make gpu-first-hour OUT=folder`."""
